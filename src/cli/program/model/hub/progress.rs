//! How a download shows itself: a bar on a terminal, a few plain lines elsewhere, or nothing.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};

/// Told about a download while it runs; files come one after another.
pub trait DownloadProgress {
    /// A file of `size` bytes begins, `done` of which an earlier try has left.
    fn start(&mut self, file: &str, size: u64, done: u64);
    /// This many more bytes have arrived.
    fn advance(&mut self, bytes: u64);
    /// The file is complete.
    fn finish(&mut self);
    /// Something worth a line: a retry, or waiting for another process.
    fn note(&mut self, text: &str);
}

/// Shows nothing.
impl DownloadProgress for () {
    fn start(&mut self, _file: &str, _size: u64, _done: u64) {}
    fn advance(&mut self, _bytes: u64) {}
    fn finish(&mut self) {}
    fn note(&mut self, _text: &str) {}
}

/// What suits standard error.
pub fn on_stderr() -> Box<dyn DownloadProgress> {
    if std::io::stderr().is_terminal() {
        Box::new(BarProgress { bar: ProgressBar::hidden() })
    } else {
        Box::new(PlainProgress::new(std::io::stderr(), Duration::from_secs(30)))
    }
}

/// One bar per file.
struct BarProgress {
    bar: ProgressBar,
}

impl DownloadProgress for BarProgress {
    fn start(&mut self, file: &str, size: u64, done: u64) {
        let template = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
        let style =
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        self.bar.finish_and_clear();
        self.bar = ProgressBar::new(size)
            .with_style(style)
            .with_position(done)
            .with_message(file.to_string());
        // The speed is that of this download, without what was there before.
        self.bar.reset_eta();
    }

    fn advance(&mut self, bytes: u64) {
        self.bar.inc(bytes);
    }

    fn finish(&mut self) {
        self.bar.finish();
    }

    fn note(&mut self, text: &str) {
        if self.bar.is_hidden() {
            eprintln!("{text}");
        } else {
            self.bar.println(text);
        }
    }
}

/// A line when a file begins, and one per interval while it lasts.
pub struct PlainProgress<W: Write> {
    out: W,
    interval: Duration,
    file: String,
    size: u64,
    done: u64,
    last_line: Instant,
}

impl<W: Write> PlainProgress<W> {
    /// Writes to `out`; a line at most every `interval` within a file.
    pub fn new(out: W, interval: Duration) -> Self {
        Self { out, interval, file: String::new(), size: 0, done: 0, last_line: Instant::now() }
    }

    // A log that cannot be written is no reason to stop a download.
    fn line(&mut self, text: &str) {
        let _ = writeln!(self.out, "{text}");
        self.last_line = Instant::now();
    }
}

impl<W: Write> DownloadProgress for PlainProgress<W> {
    fn start(&mut self, file: &str, size: u64, done: u64) {
        self.file = file.to_string();
        (self.size, self.done) = (size, done);
        let resumed = match done {
            0 => String::new(),
            done => format!(", {} of it already there", HumanBytes(done)),
        };
        self.line(&format!("downloading {file} ({}{resumed})", HumanBytes(size)));
    }

    fn advance(&mut self, bytes: u64) {
        self.done += bytes;
        if self.last_line.elapsed() >= self.interval {
            let percent = self.done.saturating_mul(100) / self.size.max(1);
            let (done, size) = (HumanBytes(self.done), HumanBytes(self.size));
            self.line(&format!("downloading {}: {percent}% ({done} of {size})", self.file));
        }
    }

    fn finish(&mut self) {}

    fn note(&mut self, text: &str) {
        self.line(text);
    }
}
