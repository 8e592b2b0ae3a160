//! Lines through `Records` and `RowParser`: every line that is not blank becomes one row, in its
//! place, whatever it holds.

use vllm_batch::cli::input::batch_line::BatchLines;
use vllm_batch::cli::input::reader::InputFormat;
use vllm_batch::cli::input::row::{ChatMode, RowOptions};

use super::rows::{self, Counts, MAX_INPUT, MAX_LINE};

/// The first byte chooses the flags (`0`: none), the rest is the input.
pub fn check(data: &[u8]) {
    let Some((choice, input)) = data.split_first() else { return };
    let choice = usize::from(choice ^ b'0');
    let is_compressed = rows::is_compressed(input);
    if input.len() > if is_compressed { 256 } else { MAX_INPUT } {
        return;
    }
    let formats = [InputFormat::Jsonl, InputFormat::Auto, InputFormat::Txt];
    let chats = [ChatMode::Auto, ChatMode::Always, ChatMode::Never];
    let lines = [BatchLines::Own, BatchLines::OpenAi, BatchLines::Never];
    let options = RowOptions {
        chat: chats[choice / 3 % 3],
        lines: lines[choice / 9 % 3],
        template: (choice / 27 % 3 == 1).then(|| "{{prompt}}: {{ x }}".to_owned()),
        prompt_column: (choice / 27 % 3 == 2).then(|| "q".to_owned()),
        ..RowOptions::default()
    };
    let output = rows::json_format(choice as u8);
    let found = rows::run(input, formats[choice % 3], &options, output, &mut |_, line| {
        rows::assert_one_json_line(line);
    });
    // An input that is refused as a whole has no rows.
    if let (Ok(found), false) = (found, is_compressed) {
        assert_eq!(found, expected(input));
    }
}

/// The same counted from the bytes alone.
fn expected(input: &[u8]) -> Counts {
    let input = input.strip_prefix(b"\xef\xbb\xbf").unwrap_or(input);
    let mut lines: Vec<&[u8]> = input.split(|byte| *byte == b'\n').collect();
    // What is behind the last line end is a line only if it is something.
    lines.pop_if(|last| last.is_empty());
    let is_blank = |line: &&&[u8]| {
        let text = line.strip_suffix(b"\r").unwrap_or(line);
        text.trim_ascii().is_empty() && text.len() <= MAX_LINE
    };
    let blank_lines = lines.iter().filter(is_blank).count() as u64;
    Counts { rows: lines.len() as u64 - blank_lines, blank_lines }
}
