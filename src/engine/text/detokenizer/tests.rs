//! Tests of incremental detokenization.

use super::super::tokenizer::tests::{byte_fallback, byte_level, metaspace};
use super::*;

/// Deterministic numbers below `n`.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }
}

fn increments(tokenizer: &Tokenizer, prompt: &[u32], output: &[u32], skip: bool) -> String {
    let mut detokenizer = Detokenizer::new(tokenizer, prompt, skip);
    for &id in output {
        let before = detokenizer.text().len();
        detokenizer.push(tokenizer, id).expect("decodes");
        let new = &detokenizer.text()[before..];
        assert!(!new.ends_with('\u{FFFD}'), "{prompt:?} {output:?}: {new:?}");
    }
    detokenizer.text().to_string()
}

/// decode(prompt + output) without decode(prompt), where what is left ends with a whole character.
fn check(tokenizer: &Tokenizer, prompt: &[u32], output: &[u32], skip: bool) -> bool {
    let all = [prompt, output].concat();
    let before = tokenizer.decode(prompt, skip).expect("text");
    let after = tokenizer.decode(&all, skip).expect("text");
    if before.ends_with('\u{FFFD}') || after.ends_with('\u{FFFD}') {
        increments(tokenizer, prompt, output, skip);
        return false;
    }
    let expected = after.strip_prefix(&before).expect("the prompt's text stays");
    assert_eq!(
        increments(tokenizer, prompt, output, skip),
        expected,
        "{prompt:?} {output:?} {skip}"
    );
    true
}

/// Any ids: broken characters in the middle are U+FFFD in both.
#[test]
fn byte_level_increments_join_to_the_whole() {
    let (tokenizer, mut random, mut checked) = (byte_level(), Random(1), 0);
    let multibyte: Vec<u32> = "日é😀".bytes().map(u32::from).collect();
    for _ in 0..4000 {
        let mut ids = |n: usize| -> Vec<u32> {
            let count = random.below(n);
            (0..count)
                .flat_map(|_| match random.below(3) {
                    0 => multibyte[..random.below(multibyte.len())].to_vec(),
                    1 => vec![random.below(266) as u32],
                    _ => vec![256 + random.below(10) as u32],
                })
                .collect()
        };
        let (prompt, output) = (ids(6), ids(8));
        checked += usize::from(check(&tokenizer, &prompt, &output, random.below(2) == 0));
    }
    assert!(checked > 1000, "only {checked} were comparable");
}

/// Byte tokens come as whole characters here: a run of them with one bad byte decodes to U+FFFD
/// altogether, also what was out already, so no increments can join to that.
fn sentencepiece_ids(tokenizer: &Tokenizer, random: &mut Random, n: usize) -> Vec<u32> {
    let texts = ["ß", "😀", "ö😀ö", "zz", "x"];
    let count = random.below(n);
    (0..count)
        .flat_map(|_| match random.below(2) {
            0 => vec![random.below(3) as u32, 259 + random.below(10) as u32],
            _ => {
                let text = texts[random.below(texts.len())];
                text.bytes().map(|byte| 3 + u32::from(byte)).collect()
            }
        })
        .filter(|&id| (id as usize) < tokenizer.vocab_size())
        .collect()
}

#[test]
fn byte_fallback_increments_join_to_the_whole() {
    let (tokenizer, mut random, mut checked) = (byte_fallback(), Random(2), 0);
    for _ in 0..4000 {
        let prompt = sentencepiece_ids(&tokenizer, &mut random, 12);
        let output = sentencepiece_ids(&tokenizer, &mut random, 6);
        checked += usize::from(check(&tokenizer, &prompt, &output, random.below(2) == 0));
    }
    assert!(checked > 3000, "only {checked} were comparable");
}

#[test]
fn metaspace_increments_join_to_the_whole() {
    let (tokenizer, mut random, mut checked) = (metaspace(), Random(3), 0);
    for _ in 0..4000 {
        let mut ids = |n: usize| -> Vec<u32> {
            let count = random.below(n);
            (0..count).map(|_| random.below(15) as u32).collect()
        };
        let (prompt, output) = (ids(12), ids(8));
        checked += usize::from(check(&tokenizer, &prompt, &output, random.below(2) == 0));
    }
    assert!(checked > 3000, "only {checked} were comparable");
}

#[test]
fn a_leading_space_depends_on_the_prompt() {
    let tokenizer = byte_fallback();
    let word = tokenizer.encode("ab", false).expect("ids");
    assert_eq!(increments(&tokenizer, &[1], &word, true), "ab");
    let prompt = [1, tokenizer.encode("b", false).expect("ids")[0]];
    assert_eq!(increments(&tokenizer, &prompt, &word, true), " ab");
    // Special tokens at the end of the prompt do not hide the text before them.
    assert_eq!(increments(&tokenizer, &[&prompt[..], &[2; 9]].concat(), &word, true), " ab");
}

#[test]
fn incomplete_characters_are_held_back() {
    let tokenizer = byte_level();
    let ids: Vec<u32> = "a😀".bytes().map(u32::from).collect();
    let mut detokenizer = Detokenizer::new(&tokenizer, &[], true);
    for &id in &ids[..4] {
        detokenizer.push(&tokenizer, id).expect("decodes");
        assert_eq!(detokenizer.text(), "a");
    }
    detokenizer.push(&tokenizer, ids[4]).expect("decodes");
    assert_eq!(detokenizer.text(), "a😀");
    // The output completes what the prompt began.
    assert_eq!(increments(&tokenizer, &ids[..3], &ids[3..], true), "😀");
}

#[test]
fn a_bad_byte_takes_nothing_back() {
    let tokenizer = byte_fallback();
    let byte = |b: u8| 3 + u32::from(b);
    let ids = [byte(0xC3), byte(0xA9), byte(0xFF), 260];
    assert_eq!(increments(&tokenizer, &[], &ids, true), "é\u{FFFD}a");
}
