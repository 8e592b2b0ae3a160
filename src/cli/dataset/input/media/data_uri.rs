//! `data:` URIs, and the base64 that they hold.

use super::Fault;
use crate::input::base64;
use crate::input::row_error::code;

/// What is behind the colon of a `data:` URI.
pub(super) struct DataUri<'a> {
    /// In lower case.
    pub media_type: String,
    is_base64: bool,
    data: &'a str,
}

impl<'a> DataUri<'a> {
    /// Takes it apart; else what is wrong with it.
    pub(super) fn parse(rest: &'a str) -> Result<Self, &'static str> {
        let (head, data) =
            rest.split_once(',').ok_or("the data: URI has no comma before its data")?;
        let head = head.to_ascii_lowercase();
        let mut params = head.split(';');
        let media_type = params.next().unwrap_or_default().to_owned();
        Ok(Self { media_type, is_base64: params.next_back() == Some("base64"), data })
    }

    /// Its data, which are base64; else what is wrong with it.
    pub(super) fn base64(&self) -> Result<&'a str, &'static str> {
        if self.is_base64 { Ok(self.data) } else { Err("the data: URI is not in base64") }
    }
}

/// The bytes of base64.
pub(super) fn decoded(text: &str) -> Result<Vec<u8>, Fault> {
    base64::decode(text).ok_or_else(|| {
        let what = "the data are not valid base64; help: encode the file's bytes with padding and \
                    without line breaks";
        (code::MEDIA_FORMAT, what.to_owned())
    })
}
