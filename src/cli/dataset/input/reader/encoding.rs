//! Encodings: which one an input has, and its text as UTF-8.

use std::fmt;
use std::io::{self, Read};

use encoding_rs::{
    BIG5, DecoderResult, EUC_KR, Encoding, GBK, ISO_2022_JP, MACINTOSH, REPLACEMENT, SHIFT_JIS,
    UTF_8, UTF_16BE, UTF_16LE, WINDOWS_1252, X_USER_DEFINED,
};

use super::InputError;

/// Bytes read and written at once.
const BUFFER: usize = 64 << 10;

/// A byte that UTF-8 never has. It stands for bytes that are no character of the encoding.
const NO_CHARACTER: u8 = 0xff;

/// Bytes that are searched for zero bytes.
const REACH: usize = 4096;

/// Bytes that are looked at on either side of a bad one.
const MAX_WORD: usize = 64;

/// Names that Python and others use beside the labels of the WHATWG.
const MORE_NAMES: &[(&str, &Encoding)] = &[
    ("utf8sig", UTF_8),
    ("utf8bom", UTF_8),
    ("ascii", UTF_8),
    ("usascii", UTF_8),
    ("utf16le", UTF_16LE),
    ("utf16be", UTF_16BE),
    ("latin1", WINDOWS_1252),
    ("ansi", WINDOWS_1252),
    ("cp932", SHIFT_JIS),
    ("cp936", GBK),
    ("cp949", EUC_KR),
    ("cp950", BIG5),
    ("macroman", MACINTOSH),
    ("iso2022jp", ISO_2022_JP),
];

/// `--encoding`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TextEncoding {
    /// UTF-16 by its mark or its zero bytes, else UTF-8.
    #[default]
    Auto,
    /// UTF-16 by its mark or its zero bytes, else little-endian.
    Utf16,
    /// This one, unless a mark says another.
    Named(&'static Encoding),
}

impl TextEncoding {
    /// UTF-8, and nothing else.
    pub const UTF_8: Self = TextEncoding::Named(UTF_8);

    /// Parses a name.
    ///
    /// # Errors
    /// No encoding has it, or it is not supported.
    pub fn parse(name: &str) -> Result<Self, String> {
        let plain: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
        let plain = plain.to_ascii_lowercase();
        match plain.as_str() {
            "auto" => return Ok(TextEncoding::Auto),
            "utf16" => return Ok(TextEncoding::Utf16),
            _ => {}
        }
        let known = MORE_NAMES.iter().find(|(known, _)| *known == plain).map(|(_, found)| *found);
        // `windows_1252` is Python's way to write it.
        let dashed = name.replace('_', "-");
        let by_label = || [name, &dashed, &plain].map(str::as_bytes).into_iter();
        let found = known.or_else(|| by_label().find_map(Encoding::for_label));
        match found.filter(|found| *found != REPLACEMENT && *found != X_USER_DEFINED) {
            Some(found) => Ok(TextEncoding::Named(found)),
            None => Err("expected auto, utf-8, utf-16le, utf-16be, windows-1252, iso-8859-2, \
                         shift_jis, gb18030, big5, euc-kr, ...; convert others with iconv"
                .to_owned()),
        }
    }
}

impl fmt::Display for TextEncoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TextEncoding::Auto => "auto",
            TextEncoding::Utf16 => "UTF-16",
            TextEncoding::Named(encoding) => encoding.name(),
        })
    }
}

/// The encoding of an input.
pub(super) struct Found {
    pub(super) encoding: &'static Encoding,
    /// Bytes of its mark.
    pub(super) mark: usize,
    /// Note about the encoding for a user.
    pub(super) note: Option<String>,
}

/// The encoding of an input that begins so. A mark says more than a flag: of several files each has
/// its own.
pub(super) fn find(head: &[u8], asked: TextEncoding) -> Found {
    if let Some((encoding, mark)) = Encoding::for_bom(head) {
        let name = encoding.name();
        let note = match asked {
            TextEncoding::Auto if encoding == UTF_8 => None,
            TextEncoding::Auto => Some(format!("the text is {name}, by its mark")),
            TextEncoding::Utf16 if encoding != UTF_8 => None,
            TextEncoding::Named(named) if named == encoding => None,
            TextEncoding::Utf16 | TextEncoding::Named(_) => Some(format!(
                "the text begins with the mark of {name}, which counts more than --encoding"
            )),
        };
        return Found { encoding, mark, note };
    }
    let without_mark = |encoding, note| Found { encoding, mark: 0, note };
    match (asked, utf_16_by_zeros(head)) {
        (TextEncoding::Named(encoding), _) => without_mark(encoding, None),
        (TextEncoding::Utf16, found) => without_mark(found.unwrap_or(UTF_16LE), None),
        (TextEncoding::Auto, None) => without_mark(UTF_8, None),
        (TextEncoding::Auto, Some(encoding)) => {
            let name = encoding.name();
            let note = format!("the text is {name}, without a mark; --encoding names another");
            without_mark(encoding, Some(note))
        }
    }
}

/// UTF-16 without a mark: the first character is ASCII, and every zero byte of the first line is
/// the upper half of a character.
fn utf_16_by_zeros(head: &[u8]) -> Option<&'static Encoding> {
    let line = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = &line[..line.len().min(REACH)];
    let zeros = |parity: usize| line.iter().skip(parity).step_by(2).filter(|b| **b == 0).count();
    // Of little-endian text the line ends in the middle of its line end.
    match (head, zeros(0), zeros(1)) {
        ([_, 0, ..], 0, 2..) => Some(UTF_16LE),
        ([0, ..], 2.., 0) => Some(UTF_16BE),
        _ => None,
    }
}

/// Refuses text that is plainly in another encoding than UTF-8: what would be bad bytes in many
/// rows looks like words of that encoding. `num_lines`: so many lines are enough.
pub(super) fn refuse_other_than_utf8(head: &[u8], num_lines: usize) -> Result<(), InputError> {
    let (mut good, mut bad, mut offset) = (0, 0, 0);
    let (mut found, mut is_new_line): (Vec<usize>, _) = (Vec::new(), true);
    for chunk in head.utf8_chunks() {
        good += chunk.valid().chars().filter(|c| !c.is_ascii()).count();
        is_new_line |= chunk.valid().contains('\n');
        let at = offset + chunk.valid().len();
        offset = at + chunk.invalid().len();
        // The last character may be cut off.
        if chunk.invalid().is_empty() || offset == head.len() && offset - at < 4 && cut(&head[at..])
        {
            continue;
        }
        bad += 1;
        if is_new_line && is_word(head, at) {
            found.push(at);
            is_new_line = false;
        }
    }
    let Some(&at) = found.first().filter(|_| found.len() >= num_lines && bad > good) else {
        return Ok(());
    };
    let before = &head[..at];
    let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
    let column = at - before.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1) + 1;
    Err(InputError::refused(
        format!("the input is not UTF-8: byte {:#04x} at offset {column} of line {line}", head[at]),
        "name its encoding: --encoding windows-1252 (Western Europe), iso-8859-2, shift_jis, \
         gb18030, utf-16le, ...; --encoding utf-8 makes an error row of each such line",
    ))
}

/// Whether bytes are the beginning of a character.
fn cut(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

/// Whether the bytes around a bad one look like text: beside a letter, or several of them that
/// differ. A price or a quote beside a digit or a space is text as well.
fn is_word(head: &[u8], at: usize) -> bool {
    // More of a line without ASCII says no more.
    let (least, most) = (at.saturating_sub(MAX_WORD), (at + MAX_WORD).min(head.len()));
    let before = head[least..at].iter().rposition(u8::is_ascii);
    let start = before.map_or(least, |end| least + end + 1);
    let end = head[at..most].iter().position(u8::is_ascii).map_or(most, |length| at + length);
    let run = &head[start..end];
    let beside = [start.checked_sub(1).map(|at| head[at]), head.get(end).copied()];
    let is_beside = |is: fn(&u8) -> bool| beside.iter().flatten().any(is);
    let is_sign = run.iter().all(|byte| (0x80..0xc0).contains(byte));
    is_beside(u8::is_ascii_alphabetic)
        || is_sign && is_beside(|byte| byte.is_ascii_digit() || *byte == b' ')
        || run.len() >= 3 && run.iter().any(|byte| *byte != run[0])
}

/// Reads text of an encoding as UTF-8. What is no character of it becomes a byte that UTF-8 has
/// not, and costs its line.
pub(super) struct Transcoder {
    input: Box<dyn Read + Send>,
    decoder: encoding_rs::Decoder,
    /// Bytes of the input, of which those before `taken` are decoded.
    raw: Vec<u8>,
    taken: usize,
    /// Text, of which the part before `given` is handed out.
    text: Vec<u8>,
    given: usize,
    /// The input has no more bytes.
    is_read: bool,
    /// They are decoded.
    is_ended: bool,
}

impl Transcoder {
    /// Reads `input`, which is behind its mark.
    pub(super) fn new(encoding: &'static Encoding, input: Box<dyn Read + Send>) -> Self {
        let decoder = encoding.new_decoder_without_bom_handling();
        let (raw, text) = (Vec::with_capacity(BUFFER), Vec::with_capacity(BUFFER));
        let (taken, given) = (0, 0);
        Self { input, decoder, raw, taken, text, given, is_read: false, is_ended: false }
    }

    /// Decodes more of the input.
    fn decode_more(&mut self) -> io::Result<()> {
        if self.taken == self.raw.len() && !self.is_read {
            self.raw.resize(BUFFER, 0);
            let count = self.input.read(&mut self.raw);
            self.raw.truncate(*count.as_ref().unwrap_or(&0));
            self.taken = 0;
            self.is_read = count? == 0;
        }
        self.text.resize(BUFFER, 0);
        let (result, read, written) = self.decoder.decode_to_utf8_without_replacement(
            &self.raw[self.taken..],
            &mut self.text,
            self.is_read,
        );
        self.taken += read;
        self.text.truncate(written);
        self.given = 0;
        match result {
            DecoderResult::Malformed(..) => self.text.push(NO_CHARACTER),
            DecoderResult::InputEmpty => self.is_ended = self.is_read,
            DecoderResult::OutputFull => {}
        }
        Ok(())
    }
}

impl Read for Transcoder {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.given == self.text.len() {
            if self.is_ended {
                return Ok(0);
            }
            if let Err(error) = self.decode_more() {
                self.text.clear();
                self.given = 0;
                return Err(error);
            }
        }
        let count = buffer.len().min(self.text.len() - self.given);
        buffer[..count].copy_from_slice(&self.text[self.given..][..count]);
        self.given += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests;
