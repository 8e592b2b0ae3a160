//! `diff`: where the answers of two outputs part. A run gives the same bytes every time, so a
//! difference means that something was changed.

mod difference;
mod pairing;
mod rows;
mod shown;

use std::io::{self, BufWriter, Write};
use std::path::Path;

use crate::args::DiffArgs;
use pairing::Counts;
use rows::OutputFile;
use shown::Finding;
use vllm_batch_dataset::terminal::console::Console;
use vllm_batch_dataset::terminal::error::{CliError, sanitized};
use vllm_batch_dataset::terminal::exit::Exit;
use vllm_batch_dataset::terminal::style::Style;

/// Rows shown to people who do not say how many.
const MAX_SHOWN: usize = 20;

/// Compares two outputs.
///
/// # Errors
/// One of them cannot be read, or standard output not be written.
pub fn run(args: &DiffArgs, console: &Console) -> Result<Exit, CliError> {
    if args.a == Path::new("-") && args.b == Path::new("-") {
        let error = CliError::refused("input", "both outputs are standard input");
        return Err(error.help("name a file for one of them"));
    }
    let mut a = OutputFile::open(&args.a, &args.field)?;
    let mut b = OutputFile::open(&args.b, &args.field)?;
    for note in a.take_notes().iter().chain(&b.take_notes()) {
        console.note(&sanitized(note));
    }
    let style = console.stdout_style();
    let mut screen = Screen::new(args, style, io::stdout().lock());
    let header = [format!("--- {}", sanitized(a.name())), format!("+++ {}", sanitized(b.name()))];
    let header = header.map(|line| style.strong(&line) + "\n").concat();
    let counts = match args.by_id {
        true => pairing::by_id(&mut a, &mut b, &mut |finding| screen.show(&header, &finding)),
        false => {
            pairing::by_position(&mut a, &mut b, &mut |finding| screen.show(&header, &finding))
        }
    };
    // What was found before a row that cannot be read is shown too.
    let counts = match counts {
        Ok(counts) => counts,
        Err(error) => return screen.flush().and(Err(error)),
    };
    let left_out = screen.left_out;
    if left_out > 0 && !args.json {
        screen.write(&format!("... and {left_out} more rows: --max-shown\n"))?;
    }
    let summary = summary(&counts);
    match args.json {
        true => console.note(&summary),
        false => screen.write(&format!("{}\n", style.strong(&summary)))?,
    }
    screen.flush()?;
    if counts.other_ids > 0 {
        console.note("Some rows have other ids at the same position: --by-id pairs them by id");
    }
    Ok(if counts.all_equal() { Exit::Success } else { Exit::GateFailed })
}

/// Standard output, with room for so many rows.
struct Screen<W: Write> {
    out: BufWriter<W>,
    json: bool,
    style: Style,
    max_shown: usize,
    shown: usize,
    left_out: u64,
}

impl<W: Write> Screen<W> {
    fn new(args: &DiffArgs, style: Style, out: W) -> Self {
        let default = if args.json { usize::MAX } else { MAX_SHOWN };
        let max_shown = args.max_shown.unwrap_or(default);
        let (out, json) = (BufWriter::new(out), args.json);
        Self { out, json, style, max_shown, shown: 0, left_out: 0 }
    }

    fn show(&mut self, header: &str, finding: &Finding) -> Result<(), CliError> {
        if self.shown == self.max_shown {
            self.left_out += 1;
            return Ok(());
        }
        self.shown += 1;
        if self.json {
            return self.write(&format!("{}\n", finding.json()));
        }
        if self.shown == 1 {
            self.write(header)?;
        }
        self.write(&finding.text(self.style))
    }

    fn write(&mut self, text: &str) -> Result<(), CliError> {
        let written = self.out.write_all(text.as_bytes());
        written.map_err(|error| CliError::from_stdout(&error))
    }

    fn flush(&mut self) -> Result<(), CliError> {
        self.out.flush().map_err(|error| CliError::from_stdout(&error))
    }
}

fn summary(counts: &Counts) -> String {
    let Counts { equal, different, only_in_a, only_in_b, .. } = counts;
    let elsewhere = match counts.equal_answers_only {
        0 => String::new(),
        rows => format!(" ({rows} of them differ outside of the answer)"),
    };
    format!(
        "Rows: {equal} equal{elsewhere}, {different} different, {only_in_a} only in A, \
         {only_in_b} only in B"
    )
}
