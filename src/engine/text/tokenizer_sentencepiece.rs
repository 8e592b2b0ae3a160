//! Reads SentencePiece's `tokenizer.model`, a protobuf of which a tokenizer needs few fields.

use super::tokenizer_limits::MAX_VOCAB_SIZE;

/// Contents of a `tokenizer.model`.
#[derive(Debug)]
pub(super) struct SentencePiece {
    pub pieces: Vec<Piece>,
    /// Else its pieces are those of BPE, words or characters.
    pub is_unigram: bool,
    pub byte_fallback: bool,
    /// Negative if there is none, as the next two.
    pub unk_id: i32,
    pub bos_id: i32,
    pub eos_id: i32,
    pub unk_piece: String,
    pub bos_piece: String,
    pub eos_piece: String,
    /// Normalizer of texts; empty if there is none.
    pub charsmap: Vec<u8>,
}

/// A token.
#[derive(Debug)]
pub(super) struct Piece {
    pub text: String,
    pub score: f32,
    pub kind: PieceKind,
}

/// Kind of a piece, as far as a tokenizer needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PieceKind {
    /// A control token, as `<s>`.
    Control,
    /// A token that is never cut.
    UserDefined,
    /// A part of texts, the unknown token, a byte.
    Other,
}

/// Values of `TrainerSpec.ModelType`.
const UNIGRAM: u64 = 1;
const BPE: u64 = 2;

impl SentencePiece {
    /// Reads a file.
    ///
    /// # Errors
    /// It is damaged, or has something that no tokenizer has.
    pub(crate) fn parse(file: &[u8]) -> Result<Self, String> {
        let mut model = Self {
            pieces: Vec::new(),
            is_unigram: true,
            byte_fallback: false,
            unk_id: 0,
            bos_id: 1,
            eos_id: 2,
            unk_piece: "<unk>".to_owned(),
            bos_piece: "<s>".to_owned(),
            eos_piece: "</s>".to_owned(),
            charsmap: Vec::new(),
        };
        for field in Fields(file) {
            match field? {
                (1, value) => model.pieces.push(Piece::parse(value.bytes()?)?),
                (2, value) => model.read_trainer_spec(value.bytes()?)?,
                (3, value) => model.read_normalizer_spec(value.bytes()?)?,
                _ => {}
            }
            if model.pieces.len() as u64 > MAX_VOCAB_SIZE {
                return Err(format!("more than {MAX_VOCAB_SIZE} pieces"));
            }
        }
        match model.pieces.is_empty() {
            true => Err("it has no pieces".to_owned()),
            false => Ok(model),
        }
    }

    fn read_trainer_spec(&mut self, spec: &[u8]) -> Result<(), String> {
        for field in Fields(spec) {
            match field? {
                (3, value) => match value.number()? {
                    UNIGRAM => self.is_unigram = true,
                    BPE => self.is_unigram = false,
                    other => return Err(format!("its model type {other} is not supported")),
                },
                (35, value) => self.byte_fallback = value.number()? != 0,
                (40, value) => self.unk_id = value.id()?,
                (41, value) => self.bos_id = value.id()?,
                (42, value) => self.eos_id = value.id()?,
                (45, value) => self.unk_piece = value.text()?,
                (46, value) => self.bos_piece = value.text()?,
                (47, value) => self.eos_piece = value.text()?,
                _ => {}
            }
        }
        Ok(())
    }

    fn read_normalizer_spec(&mut self, spec: &[u8]) -> Result<(), String> {
        for field in Fields(spec) {
            if let (2, value) = field? {
                self.charsmap = value.bytes()?.to_vec();
            }
        }
        Ok(())
    }
}

impl Piece {
    fn parse(message: &[u8]) -> Result<Self, String> {
        let mut piece = Self { text: String::new(), score: 0.0, kind: PieceKind::Other };
        for field in Fields(message) {
            match field? {
                (1, value) => piece.text = value.text()?,
                (2, value) => piece.score = value.float()?,
                (3, value) => {
                    piece.kind = match value.number()? {
                        3 => PieceKind::Control,
                        4 => PieceKind::UserDefined,
                        _ => PieceKind::Other,
                    };
                }
                _ => {}
            }
        }
        match piece.score.is_finite() {
            true => Ok(piece),
            false => Err(format!("the score of piece {:?} is not a number", piece.text)),
        }
    }
}

/// The fields of a protobuf message, by number.
struct Fields<'a>(&'a [u8]);

/// The value of a field.
enum FieldValue<'a> {
    Number(u64),
    Four([u8; 4]),
    Eight,
    Bytes(&'a [u8]),
}

impl FieldValue<'_> {
    fn number(&self) -> Result<u64, String> {
        match self {
            Self::Number(number) => Ok(*number),
            _ => Err(MISTYPED.to_owned()),
        }
    }

    /// An int32 is written as the 64 bits of its sign extension.
    fn id(&self) -> Result<i32, String> {
        Ok(self.number()? as i32)
    }

    fn float(&self) -> Result<f32, String> {
        match self {
            Self::Four(bytes) => Ok(f32::from_le_bytes(*bytes)),
            _ => Err(MISTYPED.to_owned()),
        }
    }
}

impl<'a> FieldValue<'a> {
    fn bytes(&self) -> Result<&'a [u8], String> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            _ => Err(MISTYPED.to_owned()),
        }
    }

    fn text(&self) -> Result<String, String> {
        let text = String::from_utf8(self.bytes()?.to_vec());
        text.map_err(|_| "a text in it is not UTF-8".to_owned())
    }
}

const MISTYPED: &str = "a field has another type than SentencePiece's";
const CUT: &str = "it ends in the middle of a field";

impl<'a> Fields<'a> {
    fn take(&mut self, num_bytes: u64) -> Result<&'a [u8], String> {
        let num_bytes = usize::try_from(num_bytes).map_err(|_| CUT)?;
        let (taken, rest) = self.0.split_at_checked(num_bytes).ok_or(CUT)?;
        self.0 = rest;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, String> {
        let mut number = 0;
        for shift in (0..70).step_by(7) {
            let byte = self.take(1)?[0];
            number |= u64::from(byte & 0x7F).checked_shl(shift).unwrap_or(0);
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err("a number in it is too long".to_owned())
    }

    fn field(&mut self) -> Result<(u64, FieldValue<'a>), String> {
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => FieldValue::Number(self.varint()?),
            1 => self.take(8).map(|_| FieldValue::Eight)?,
            2 => {
                let num_bytes = self.varint()?;
                FieldValue::Bytes(self.take(num_bytes)?)
            }
            5 => FieldValue::Four(self.take(4)?.try_into().map_err(|_| CUT)?),
            other => return Err(format!("it has a field of the unknown kind {other}")),
        };
        Ok((tag >> 3, value))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, FieldValue<'a>), String>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pieces "<unk>" and "▁a", BPE, no `</s>`, a charsmap, and fields that are passed over.
    const FILE: &[u8] = b"\x0a\x09\x0a\x05<unk>\x18\x02\
        \x0a\x0d\x0a\x04\xe2\x96\x81a\x15\x00\x00\x80\xbf\x18\x01\
        \x12\x17\x18\x02\x98\x02\x01\xd0\x02\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\xea\x02\x03[U]\
        \x1a\x09\x0a\x03nfk\x12\x02\x01\x02\x29\x00\x00\x00\x00\x00\x00\x00\x00";

    #[test]
    fn fields_are_read() {
        let model = SentencePiece::parse(FILE).unwrap();
        assert_eq!((model.pieces.len(), model.is_unigram), (2, false));
        assert_eq!((&*model.pieces[1].text, model.pieces[1].score), ("▁a", -1.0));
        assert_eq!((model.unk_id, model.bos_id, model.eos_id), (0, 1, -1));
        assert_eq!((&*model.unk_piece, &*model.bos_piece), ("[U]", "<s>"));
        assert_eq!((model.byte_fallback, &*model.charsmap), (true, &[1, 2][..]));
    }

    /// A cut file is refused, or has fewer fields; nothing is believed that is not there.
    #[test]
    fn damaged_files_are_refused() {
        for len in 0..FILE.len() {
            if let Ok(model) = SentencePiece::parse(&FILE[..len]) {
                assert!(model.pieces.len() <= 2);
            }
        }
        for (file, what) in [
            (&b""[..], "no pieces"),
            (b"\x0a\xff\xff\xff\xff\x0f", "middle"),
            (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "middle"),
            (b"\x08\x01", "another type"),
            (b"\x0a\x02\x08\x01", "another type"),
            (b"\x0a\x03\x0a\x01\xff", "UTF-8"),
            (b"\x0a\x05\x15\x00\x00\xc0\x7f", "not a number"),
            (b"\x0f", "kind 7"),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "too long"),
            (b"\x12\x02\x18\x03", "model type 3"),
        ] {
            let error = SentencePiece::parse(file).unwrap_err();
            assert!(error.contains(what), "{file:?}: {error}");
        }
    }
}
