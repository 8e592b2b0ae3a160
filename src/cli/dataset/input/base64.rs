//! base64 as RFC 4648 has it: bytes as text, and back.

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// What is no digit.
const NONE: u8 = 64;

/// The value of every byte as a digit.
const VALUES: [u8; 256] = {
    let mut values = [NONE; 256];
    let mut value = 0;
    while value < DIGITS.len() {
        values[DIGITS[value] as usize] = value as u8;
        value += 1;
    }
    values
};

/// Bytes as text.
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte));
        let word = word << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let digit = DIGITS[(word >> (18 - 6 * place) & 63) as usize];
            text.push(if place <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

/// The bytes of what `encode` wrote. None: it wrote something else, or nobody did.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let text = text.as_bytes();
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let num_pads = text.iter().rev().take(2).take_while(|byte| **byte == b'=').count();
    let digits = &text[..text.len() - num_pads];
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for chunk in digits.chunks(4) {
        let (mut word, mut all) = (0u32, 0u8);
        for digit in chunk {
            let value = VALUES[usize::from(*digit)];
            all |= value;
            word = word << 6 | u32::from(value);
        }
        word <<= 6 * (4 - chunk.len());
        let [_, all_bytes @ ..] = word.to_be_bytes();
        let (used, unused) = all_bytes.split_at(chunk.len() - 1);
        // What is behind the last byte is zero.
        if all & NONE != 0 || unused.iter().any(|byte| *byte != 0) {
            return None;
        }
        bytes.extend_from_slice(used);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_text_are_each_others() {
        let vectors =
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")];
        for (bytes, text) in vectors {
            assert_eq!(encode(bytes.as_bytes()), text);
            assert_eq!(decode(text), Some(bytes.as_bytes().to_vec()));
        }
        let all: Vec<u8> = (0..=255).collect();
        for end in 0..=all.len() {
            assert_eq!(decode(&encode(&all[..end])).as_deref(), Some(&all[..end]));
        }
    }

    #[test]
    fn what_nobody_writes_is_not_read() {
        let wrong =
            ["Z", "Zg", "Zg=", "Zh==", "Zm9=", "=", "====", "Z===", "Zm9v\n", "*w==", "Zg==Zg=="];
        for text in wrong {
            assert_eq!(decode(text), None, "{text:?}");
        }
    }
}
