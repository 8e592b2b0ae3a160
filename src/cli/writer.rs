//! `OrderedWriter`: rows arrive in any order and leave in input order. `Sink`: where they go.

mod sink;

use std::collections::BTreeMap;
use std::io::Write;

pub use self::sink::{OutputError, PartFile, Sink};

/// Emitted rows are handed to the system when there are this many bytes of them.
const BUFFER: usize = 64 << 10;

/// Emits rows in order, in whole lines: a write to the system begins and ends with a row.
pub struct OrderedWriter<W: Write> {
    sink: W,
    /// Index of the row to emit next.
    next: u64,
    /// Rows that came before their turn.
    pending: BTreeMap<u64, Vec<u8>>,
    pending_bytes: usize,
    /// Emitted, not yet written.
    buffer: Vec<u8>,
}

impl<W: Write> OrderedWriter<W> {
    /// Starts at row 0.
    pub fn new(sink: W) -> Self {
        Self { sink, next: 0, pending: BTreeMap::new(), pending_bytes: 0, buffer: Vec::new() }
    }

    /// Takes bytes that belong to no row (a CSV header), before the first row. They are written
    /// with it: an output that holds no row is empty.
    pub fn write_header(&mut self, bytes: &[u8]) {
        assert_eq!(self.next, 0, "a header comes before the first row");
        self.buffer.extend_from_slice(bytes);
    }

    /// Takes a row, newline included; emits it and those that waited for it, when its turn has
    /// come.
    ///
    /// # Errors
    /// The sink's.
    pub fn push(&mut self, index: u64, row: Vec<u8>) -> Result<(), OutputError> {
        assert!(index >= self.next, "row {index} was emitted before");
        if index > self.next {
            self.pending_bytes += row.len();
            let twice = self.pending.insert(index, row);
            assert!(twice.is_none(), "row {index} came twice");
            return Ok(());
        }
        self.emit(&row)?;
        self.next += 1;
        while let Some(row) = self.pending.remove(&self.next) {
            self.pending_bytes -= row.len();
            self.emit(&row)?;
            self.next += 1;
        }
        Ok(())
    }

    /// Hands everything emitted to the system: call it when no further row is immediately ready, so
    /// that a reader of a pipe sees what is done.
    ///
    /// # Errors
    /// The sink's.
    pub fn flush(&mut self) -> Result<(), OutputError> {
        if self.next > 0 {
            self.write_buffer()?;
        }
        self.sink.flush().map_err(|error| OutputError::of("write", error))
    }

    /// Rows waiting for an earlier one.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Bytes of the rows waiting for an earlier one.
    pub fn pending_bytes(&self) -> usize {
        self.pending_bytes
    }

    /// Rows emitted.
    pub fn emitted(&self) -> u64 {
        self.next
    }

    /// Flushes and gives the sink back, for [`Sink::finish`]. All rows up to the last have come.
    ///
    /// # Errors
    /// The sink's.
    pub fn into_inner(mut self) -> Result<W, OutputError> {
        assert!(self.pending.is_empty(), "row {} never came", self.next);
        self.write_buffer()?;
        self.flush()?;
        Ok(self.sink)
    }

    fn emit(&mut self, bytes: &[u8]) -> Result<(), OutputError> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= BUFFER { self.write_buffer() } else { Ok(()) }
    }

    fn write_buffer(&mut self) -> Result<(), OutputError> {
        let written = self.sink.write_all(&self.buffer);
        // After an error nobody knows how much was written; writing again could double rows.
        self.buffer.clear();
        written.map_err(|error| OutputError::of("write", error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Remembers each write; refuses the n-th.
    struct Probe {
        writes: Vec<String>,
        fail_at: usize,
        kind: std::io::ErrorKind,
    }

    impl Probe {
        fn new(fail_at: usize, kind: std::io::ErrorKind) -> Self {
            Self { writes: Vec::new(), fail_at, kind }
        }
    }

    impl Write for Probe {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            if self.writes.len() == self.fail_at {
                return Err(self.kind.into());
            }
            self.writes.push(String::from_utf8_lossy(bytes).into_owned());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn every_order_of_arrival_gives_input_order() {
        // All 120 permutations of five rows, by their Lehmer codes.
        for code in 0..120u64 {
            let (mut rest, mut left) = ((0..5u64).collect::<Vec<_>>(), code);
            let mut writer = OrderedWriter::new(Vec::new());
            for count in (1..=5).rev() {
                let index = rest.remove((left % count) as usize);
                left /= count;
                writer.push(index, format!("{index}\n").into_bytes()).expect("in memory");
            }
            assert_eq!((writer.emitted(), writer.pending_bytes()), (5, 0));
            assert_eq!(writer.into_inner().expect("in memory"), b"0\n1\n2\n3\n4\n");
        }
    }

    #[test]
    fn rows_wait_and_are_counted() {
        let mut writer = OrderedWriter::new(Vec::new());
        writer.write_header(b"head\n");
        writer.flush().expect("in memory");
        assert!(writer.sink.is_empty(), "a header waits for a row");
        writer.push(2, b"two\n".to_vec()).expect("in memory");
        writer.push(1, b"one\n".to_vec()).expect("in memory");
        assert_eq!((writer.pending(), writer.pending_bytes(), writer.emitted()), (2, 8, 0));
        writer.push(0, b"zero\n".to_vec()).expect("in memory");
        assert_eq!((writer.pending(), writer.pending_bytes(), writer.emitted()), (0, 0, 3));
        assert_eq!(writer.into_inner().expect("in memory"), b"head\nzero\none\ntwo\n");
    }

    #[test]
    fn writes_are_whole_lines() {
        let mut writer = OrderedWriter::new(Probe::new(usize::MAX, std::io::ErrorKind::Other));
        let row = format!("{}\n", "x".repeat(30_000));
        for index in 0..5 {
            writer.push(index, row.clone().into_bytes()).expect("no failure");
        }
        let probe = writer.into_inner().expect("no failure");
        let lines: Vec<_> = probe.writes.iter().map(|w| (w.len(), w.ends_with('\n'))).collect();
        assert_eq!(lines, [(90_003, true), (60_002, true)]);
    }

    #[test]
    fn nothing_is_written_before_it_is_flushed_and_all_after() {
        let mut writer = OrderedWriter::new(Probe::new(usize::MAX, std::io::ErrorKind::Other));
        writer.push(0, b"a\n".to_vec()).expect("no failure");
        assert!(writer.sink.writes.is_empty());
        writer.flush().expect("no failure");
        assert_eq!(writer.sink.writes, ["a\n"]);
    }

    #[test]
    fn a_broken_pipe_and_a_full_disk_are_told_apart() {
        let fail = |kind| {
            let mut writer = OrderedWriter::new(Probe::new(0, kind));
            writer.push(0, b"a\n".to_vec()).expect("buffered");
            writer.flush().expect_err("the probe fails")
        };
        assert!(matches!(fail(std::io::ErrorKind::BrokenPipe), OutputError::BrokenPipe));
        assert!(matches!(fail(std::io::ErrorKind::StorageFull), OutputError::Full(_)));
        assert!(matches!(fail(std::io::ErrorKind::QuotaExceeded), OutputError::Full(_)));
        assert!(matches!(fail(std::io::ErrorKind::PermissionDenied), OutputError::Io { .. }));
    }

    #[test]
    #[should_panic(expected = "row 3 came twice")]
    fn a_row_that_comes_twice_is_a_bug() {
        let mut writer = OrderedWriter::new(Vec::new());
        writer.push(3, b"a\n".to_vec()).expect("in memory");
        writer.push(3, b"a\n".to_vec()).expect("in memory");
    }

    #[test]
    #[should_panic(expected = "row 0 never came")]
    fn a_row_that_never_comes_is_a_bug() {
        let mut writer = OrderedWriter::new(Vec::new());
        writer.push(1, b"a\n".to_vec()).expect("in memory");
        let _ = writer.into_inner();
    }
}
