//! Documents of chats: the pages of a PDF are images, in their order.

use std::sync::Arc;

use super::{Fault, MediaReader, is_web, scheme};
use crate::input::base64;
use crate::input::parts;
use crate::input::pdf::Origin;
use crate::input::row_error::code;
use vllm_batch_base::files::quoted;
use vllm_batch_media::Medium;

/// The type of a PDF in a `data:` URI.
const PDF: &str = "application/pdf";

impl MediaReader {
    /// The pages of a document, of which a row may have `most`. It is a `data:` URI, a URL or
    /// base64.
    pub(super) fn pages(&self, text: &str, most: usize) -> Result<Vec<Medium>, Fault> {
        let bytes = match text {
            url if is_web(url) => self.fetched_bytes(url)?,
            text => Arc::new(decoded(text)?),
        };
        let origin = Origin::Bytes(bytes);
        let pages = parts::pages_of(&self.renderers, origin, self.drawing, most);
        pages.map_err(|error| (error.code(), error.to_string()))
    }
}

/// The bytes of a `data:` URI, or of base64.
fn decoded(text: &str) -> Result<Vec<u8>, Fault> {
    let wrong = |what: &str| (code::MEDIA_FORMAT, what.to_owned());
    let data = match scheme(text) {
        None => text,
        Some((known, rest)) if known.eq_ignore_ascii_case("data") => {
            let no_comma = || wrong("the data: URI has no comma before its data");
            let (kind, data) = rest.split_once(',').ok_or_else(no_comma)?;
            let kind = kind.to_ascii_lowercase();
            let mut params = kind.split(';');
            let media_type = params.next().unwrap_or_default();
            if media_type != PDF {
                let what =
                    format!("the document has the type {}, and PDFs are read", quoted(media_type));
                return Err((code::MEDIA_UNSUPPORTED, what));
            }
            if params.next_back() != Some("base64") {
                return Err(wrong("the data: URI is not in base64"));
            }
            data
        }
        Some((other, _)) => {
            let what =
                format!("documents of {other}: are not read; help: give the bytes in base64");
            return Err((code::MEDIA_FORBIDDEN, what));
        }
    };
    let what = "the data are not valid base64; help: encode the file's bytes with padding and \
                without line breaks";
    base64::decode(data).ok_or_else(|| wrong(what))
}
