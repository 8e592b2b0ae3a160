//! Documents of chats: the pages of a PDF are images, in their order.

use std::sync::Arc;

use super::data_uri::{DataUri, decoded};
use super::{Fault, MediaReader, is_web, scheme};
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
            text => Arc::new(bytes_of(text)?),
        };
        let origin = Origin::Bytes(bytes);
        let pages = parts::pages_of(&self.renderers, origin, self.drawing, most);
        pages.map_err(|error| (error.code(), error.to_string()))
    }
}

/// The bytes of a `data:` URI, or of base64.
fn bytes_of(text: &str) -> Result<Vec<u8>, Fault> {
    let wrong = |what: &str| (code::MEDIA_FORMAT, what.to_owned());
    match scheme(text) {
        None => decoded(text),
        Some((known, rest)) if known.eq_ignore_ascii_case("data") => {
            let uri = DataUri::parse(rest).map_err(wrong)?;
            if uri.media_type != PDF {
                let media_type = quoted(&uri.media_type);
                let what = format!("the document has the type {media_type}, and PDFs are read");
                return Err((code::MEDIA_UNSUPPORTED, what));
            }
            decoded(uri.base64().map_err(wrong)?)
        }
        Some((other, _)) => {
            let what =
                format!("documents of {other}: are not read; help: give the bytes in base64");
            Err((code::MEDIA_FORBIDDEN, what))
        }
    }
}
