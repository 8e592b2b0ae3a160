//! What each token stands for in bytes: what structured output needs to know of a vocabulary.

use serde_json::Value;
use tokenizers::utils::byte_level::char_to_byte;

/// How the strings of a vocabulary spell bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ByteForm {
    /// Every character is a byte (GPT-2's table).
    ByteLevel,
    /// Text, with this character for a space, and `<0xNN>` for single bytes.
    ByteFallback { space: char },
    /// Neither: what a token adds to a text depends on its neighbours (WordPiece).
    Neither,
}

impl ByteForm {
    /// The form that a decoder of `tokenizer.json` reads.
    pub(super) fn of_decoder(decoder: &Value) -> Self {
        let steps = match decoder["decoders"].as_array() {
            Some(steps) => steps.as_slice(),
            None => std::slice::from_ref(decoder),
        };
        let has = |kind: &str| steps.iter().any(|step| step["type"] == kind);
        if has("ByteLevel") {
            return ByteForm::ByteLevel;
        }
        let replaced = |step: &Value| {
            let is_space = step["type"] == "Replace" && step["content"] == " ";
            let mut chars = step["pattern"]["String"].as_str().filter(|_| is_space)?.chars();
            chars.next().filter(|_| chars.next().is_none())
        };
        let metaspace = |step: &Value| {
            let is_metaspace = step["type"] == "Metaspace";
            is_metaspace.then(|| step["replacement"].as_str()?.chars().next())?
        };
        let space = steps.iter().find_map(|step| replaced(step).or_else(|| metaspace(step)));
        match space {
            Some(space) => ByteForm::ByteFallback { space },
            None if has("ByteFallback") => ByteForm::ByteFallback { space: ' ' },
            None => ByteForm::Neither,
        }
    }

    /// The bytes of a token of the vocabulary; None where it has none by this form.
    pub(super) fn bytes(self, token: &str) -> Option<Vec<u8>> {
        match self {
            ByteForm::ByteLevel => token.chars().map(char_to_byte).collect(),
            ByteForm::ByteFallback { space } => {
                let byte = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
                if let Some(Ok(byte)) = byte.map(|digits| u8::from_str_radix(digits, 16)) {
                    return Some(vec![byte]);
                }
                Some(token.replace(space, " ").into_bytes())
            }
            ByteForm::Neither => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tokens_are_bytes_by_the_decoder() {
        let byte_level = ByteForm::of_decoder(&json!({"type": "ByteLevel"}));
        assert_eq!(byte_level.bytes("Ġé").unwrap(), [b' ', 0xE9]);
        assert_eq!(byte_level.bytes("\u{4E00}"), None);
        let llama = json!({"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
        ]});
        let llama = ByteForm::of_decoder(&llama);
        assert_eq!(llama.bytes("▁the").unwrap(), b" the");
        assert_eq!(llama.bytes("<0x0A>").unwrap(), b"\n");
        let metaspace = ByteForm::of_decoder(&json!({"type": "Metaspace", "replacement": "▁"}));
        assert_eq!(metaspace.bytes("▁é").unwrap(), " é".as_bytes());
        let word_piece = ByteForm::of_decoder(&json!({"type": "WordPiece", "prefix": "##"}));
        assert_eq!((word_piece, word_piece.bytes("a")), (ByteForm::Neither, None));
    }
}
