//! Compressed inputs, whole and damaged, to the records of what they hold.

use std::io::Cursor;

use crate::input::compress::Compression;
use crate::input::reader::{Content, InputFormat, Records};

use super::*;

const ROWS: &[u8] = b"{\"prompt\":\"a\"}\n\n{\"prompt\":\"b\"}\r\n{\"prompt\":\"c\"}\n";
const BOTH: [Compression; 2] = [Compression::Gzip, Compression::Zstd];
const TRUNCATED: ErrorKind = ErrorKind::UnexpectedEof;

fn encoded(compression: Compression, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    compression.encode(bytes, &mut out);
    out
}

fn skippable(content: &[u8]) -> Vec<u8> {
    let length = (content.len() as u32).to_le_bytes();
    [&[0x5a, 0x2a, 0x4d, 0x18], &length[..], content].concat()
}

/// The header of a frame with this window and nothing in it.
fn frame_of_window(log: u8) -> Vec<u8> {
    vec![0x28, 0xb5, 0x2f, 0xfd, 0, (log - 10) << 3, 1, 0, 0]
}

/// The lines, and what ended them.
type Outcome = (Vec<(u64, String)>, Option<io::Error>);

fn read_from(input: Box<dyn Read + Send>) -> Result<Outcome, InputError> {
    let mut lines = Vec::new();
    for record in Records::open(input, InputFormat::Auto, 1000)? {
        match record {
            Ok(record) => match record.content {
                Content::Line(text) => lines.push((record.line, text)),
                other => panic!("{other:?}"),
            },
            Err(error) => return Ok((lines, Some(error))),
        }
    }
    Ok((lines, None))
}

fn read(input: &[u8]) -> Result<Outcome, InputError> {
    read_from(Box::new(Cursor::new(input.to_vec())))
}

fn lines(input: &[u8]) -> Vec<(u64, String)> {
    let (lines, error) = read(input).expect("not refused");
    assert!(error.is_none(), "{error:?}");
    lines
}

fn refusal(input: &[u8]) -> (String, String) {
    match read(input) {
        Err(InputError::Refused { message, help }) => (message, help),
        other => panic!("{other:?}"),
    }
}

/// The error that is met at the beginning or after some lines.
fn broken(input: &[u8]) -> (Vec<(u64, String)>, io::Error) {
    match read(input) {
        Ok((lines, Some(error))) => (lines, error),
        Err(InputError::Io(error)) => (Vec::new(), error),
        other => panic!("{other:?}"),
    }
}

#[test]
fn members_and_frames_are_one_input() {
    let expected = lines(ROWS);
    assert_eq!(expected.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [1, 3, 4]);
    for compression in BOTH {
        for cut in [0, 1, 14, 20, ROWS.len()] {
            // The second begins in the middle of a line.
            let (first, second) = ROWS.split_at(cut);
            let (first, second) = (encoded(compression, first), encoded(compression, second));
            assert_eq!(lines(&[first, second].concat()), expected, "{compression:?} {cut}");
        }
        assert!(lines(&encoded(compression, b"")).is_empty());
    }
    let (skip, frame) = (skippable(b"{\"prompt\":\"x\"}\n"), encoded(Compression::Zstd, ROWS));
    assert_eq!(lines(&[&skip[..], &skip, &frame, &skip].concat()), expected);
    assert!(lines(&skip).is_empty());
    let zeros = encoded(Compression::Gzip, ROWS).into_iter().chain([0; 300_000]);
    assert_eq!(lines(&zeros.collect::<Vec<_>>()), expected, "padded as tapes are");
}

/// Header fields that our own writer leaves out.
#[test]
fn gzip_with_a_name_a_comment_and_more() {
    let mut encoder = flate2::GzBuilder::new()
        .filename("rows.jsonl")
        .comment("from elsewhere")
        .extra(vec![7; 60_000])
        .mtime(1_700_000_000)
        .write(Vec::new(), flate2::Compression::best());
    io::Write::write_all(&mut encoder, ROWS).unwrap();
    assert_eq!(lines(&encoder.finish().unwrap()), lines(ROWS));
}

/// A pipe that gives one byte at a time, interrupted in between.
struct Trickle(Cursor<Vec<u8>>, bool);

impl Read for Trickle {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.1 = !self.1;
        match self.1 {
            true => Err(ErrorKind::Interrupted.into()),
            false => self.0.read(&mut buffer[..1]),
        }
    }
}

#[test]
fn a_slow_pipe_gives_the_same_rows() {
    for compression in BOTH {
        let twice = encoded(compression, ROWS).repeat(2);
        let slow = read_from(Box::new(Trickle(Cursor::new(twice.clone()), false)));
        assert_eq!(slow.expect("not refused").0, lines(&twice));
    }
}

#[test]
fn wherever_it_is_cut_off_that_is_said() {
    for compression in BOTH {
        let member = encoded(compression, ROWS);
        let twice = member.repeat(2);
        let expected = lines(&twice);
        for length in 4..twice.len() {
            if length == member.len() {
                continue;
            }
            let (lines, error) = broken(&twice[..length]);
            assert_eq!(error.kind(), TRUNCATED, "{compression:?} {length}: {error}");
            assert!(error.to_string().contains("data is cut off"), "{error}");
            assert!(expected.starts_with(&lines));
            assert!(length < member.len() || lines.len() >= 3, "rows before it are kept");
        }
    }
}

#[test]
fn no_flipped_bit_gives_other_rows_unnoticed() {
    for compression in BOTH {
        let good = encoded(compression, ROWS);
        let expected = lines(ROWS);
        let mut noticed = 0;
        for bit in 32..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            // Time and system in the header of gzip mean nothing, nor do the last bits of deflate.
            match read(&bad) {
                Ok((lines, None)) => assert_eq!(lines, expected, "{compression:?}, bit {bit}"),
                Ok((_, Some(_))) | Err(_) => noticed += 1,
            }
        }
        assert!(noticed + 7 >= (good.len() - 10) * 8, "{noticed} of {}", good.len() * 8);
    }
}

#[test]
fn the_error_names_the_last_line_that_was_read() {
    for compression in BOTH {
        let name = if compression == Compression::Gzip { "gzip" } else { "zstd" };
        let member = encoded(compression, ROWS);
        let cut = [&member[..], &member[..member.len() - 1]].concat();
        let (rows, error) = broken(&cut);
        let message = format!("the {name} data is cut off, after line 8");
        assert_eq!((rows.len(), error.to_string()), (6, message));
        let (rows, error) = broken(&[&member[..], b"garbage"].concat());
        assert_eq!((rows.len(), error.kind()), (3, ErrorKind::InvalidData));
        let message = error.to_string();
        assert!(message.starts_with(&format!("the {name} data is corrupt: ")), "{message}");
        assert!(message.ends_with(", after line 4"), "{message}");
    }
    let padded = [&encoded(Compression::Gzip, ROWS)[..], &[0; 10], b"x"].concat();
    let message = "the gzip data is corrupt: garbage after its end, after line 4";
    assert_eq!(broken(&padded).1.to_string(), message);
    let header = [&encoded(Compression::Gzip, b"a long li")[..], &[0x1f, 0x8b]].concat();
    assert_eq!(broken(&header).1.to_string(), "the gzip data is cut off, in line 1");
}

#[test]
fn errors_of_the_raw_input_stay_what_they_are() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::from_raw_os_error(5))
        }
    }
    for compression in BOTH {
        let member = encoded(compression, ROWS);
        let input = Cursor::new(member).chain(Broken);
        let (rows, error) = read_from(Box::new(input)).expect("the start is fine");
        assert_eq!(rows.len(), 3);
        let error = error.expect("broken").to_string();
        assert_eq!(error, "Input/output error (os error 5), after line 4");
    }
}

#[test]
fn what_is_compressed_twice_is_refused() {
    let (gzip, zstd) = (encoded(Compression::Gzip, ROWS), encoded(Compression::Zstd, ROWS));
    for (outer, inner, names, command) in [
        (Compression::Gzip, &gzip[..], "with gzip and inside it gzip", "zcat FILE | zcat"),
        (Compression::Gzip, &zstd, "with gzip and inside it zstd", "zcat FILE | zstdcat"),
        (Compression::Zstd, &gzip, "with zstd and inside it gzip", "zstdcat FILE | zcat"),
        (Compression::Zstd, b"BZh91AY&SY", "with zstd and inside it bzip2", "zstdcat FILE | bzcat"),
    ] {
        let (message, help) = refusal(&encoded(outer, inner));
        assert_eq!(message, format!("the input is compressed twice, {names}"));
        assert_eq!(help, format!("use `{command} | vllm-batch run ...`"));
    }
    // What is refused in plain text is refused here.
    assert!(refusal(&encoded(Compression::Gzip, b"\xff\xfe\0\0")).0.contains("UTF-32"));
    assert!(refusal(&encoded(Compression::Zstd, b"PAR1\x15\x04")).0.contains("Parquet"));
}

#[test]
fn a_window_over_the_limit_is_refused() {
    let frame = encoded(Compression::Zstd, ROWS);
    let allowed = frame_of_window(MAX_WINDOW_LOG as u8);
    assert_eq!(lines(&[&allowed[..], &frame].concat()), lines(ROWS));
    for log in [MAX_WINDOW_LOG as u8 + 1, 31, 41] {
        let (message, help) = refusal(&frame_of_window(log));
        assert_eq!(message, "the zstd data needs a window of more than 128 MiB");
        assert!(help.contains("zstd -dc --long=31 FILE |"), "{help}");
        let (rows, error) = broken(&[&frame[..], &frame_of_window(log)].concat());
        assert_eq!((rows.len(), error.kind()), (3, ErrorKind::Unsupported));
    }
}
