//! `CommandJudge`: a program of the user's that judges, one line of JSON in and one out for each
//! answer. It is started once, at the first answer, and lives as long as the run.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::criterion::Scored;
use super::keeper;

/// Longest line of a verdict.
const MAX_LINE: u64 = 1 << 20;

/// Longest time of a program for one answer (`--scorer-timeout`).
const TIMEOUT: Duration = Duration::from_secs(600);

/// Bytes of a program's standard error that are shown.
const MAX_COMPLAINTS: u64 = 1 << 20;

/// How often whoever waits for a line looks whether the run ends.
const TICK: Duration = Duration::from_millis(50);

/// Why a program gives no verdict.
#[derive(Debug, PartialEq, Eq)]
pub enum CommandError {
    /// It failed: what is wrong.
    Failed(String),
    /// The run ends.
    Stopped,
}

/// Verdict of the program. Other fields are its own.
#[derive(Deserialize)]
struct Said {
    score: f64,
    pass: Option<bool>,
    reason: Option<String>,
}

/// The two ends of a program.
#[derive(Debug)]
struct Pipes {
    /// Lines for it.
    questions: Sender<String>,
    /// Its lines, or why there are no more.
    lines: Receiver<Result<String, String>>,
}

/// A program that judges.
#[derive(Debug)]
pub(super) struct CommandJudge {
    /// Words with spaces between them.
    program: String,
    /// Longest time for one answer.
    timeout: Duration,
    /// Apart from its pipes: it may have to go while somebody reads from it.
    child: Mutex<Option<Child>>,
    pipes: Mutex<Option<Pipes>>,
    is_stopped: AtomicBool,
}

impl CommandJudge {
    /// A program that is not started yet.
    pub(super) fn new(program: String, timeout: Option<Duration>) -> Self {
        Self {
            program,
            timeout: timeout.unwrap_or(TIMEOUT),
            child: Mutex::default(),
            pipes: Mutex::default(),
            is_stopped: AtomicBool::new(false),
        }
    }

    /// Asks for a verdict. `question` is one line.
    ///
    /// # Errors
    /// The program cannot be started, has ended, says something else than a verdict, or takes too
    /// long; or the run ends.
    pub(super) fn ask(&self, question: String) -> Result<Scored, CommandError> {
        let mut pipes = locked(&self.pipes);
        let said = self.said(&mut pipes, question);
        said.map_err(|what| match self.is_stopped.load(Ordering::Relaxed) {
            true => CommandError::Stopped,
            false => CommandError::Failed(format!("`{}` {what}", self.program)),
        })
    }

    fn said(&self, pipes: &mut Option<Pipes>, question: String) -> Result<Scored, String> {
        if pipes.is_none() {
            *pipes = Some(self.start()?);
        }
        let pipes = pipes.as_mut().expect("started above");
        let ended = || "ended before the last row".to_owned();
        let sent = pipes.questions.send(question);
        let begin = Instant::now();
        let line = loop {
            match pipes.lines.recv_timeout(TICK) {
                Ok(line) => break line?,
                Err(RecvTimeoutError::Disconnected) => return Err(ended()),
                Err(RecvTimeoutError::Timeout) if sent.is_err() => return Err(ended()),
                Err(RecvTimeoutError::Timeout) if self.is_stopped.load(Ordering::Relaxed) => {
                    return Err("was stopped".to_owned());
                }
                Err(RecvTimeoutError::Timeout) if begin.elapsed() > self.timeout => {
                    self.end();
                    let seconds = self.timeout.as_secs_f64();
                    return Err(format!(
                        "gave no verdict within {seconds} seconds (--scorer-timeout)"
                    ));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        };
        let said: Said = serde_json::from_str(&line).map_err(|error| {
            format!("said what is no verdict, as {{\"score\": 1, \"pass\": true}}: {error}")
        })?;
        let Said { score, pass, reason } = said;
        Ok(Scored { score, passed: pass, reason, ..Scored::default() })
    }

    fn start(&self) -> Result<Pipes, String> {
        let words: Vec<&str> = self.program.split_whitespace().collect();
        let failed = |error: std::io::Error| format!("cannot be started: {error}");
        if words.first().and_then(|name| found(name)).is_none() {
            return Err(failed(std::io::ErrorKind::NotFound.into()));
        }
        let mut command = keeper::command(&words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Ctrl-C is for the run, which then ends the program.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn().map_err(failed)?;
        let (input, output) = child.stdin.take().zip(child.stdout.take()).expect("both are piped");
        let complaints = child.stderr.take().expect("it is piped");
        *locked(&self.child) = Some(child);
        let (questions, asked) = channel();
        let (sender, lines) = channel();
        let of_writer = sender.clone();
        let threads: [Box<dyn FnOnce() + Send>; 3] = [
            Box::new(move || write_all(input, &asked, &of_writer)),
            // What the program has started may hold its output open for ever: nobody waits for it.
            Box::new(move || read_all(output, &sender)),
            Box::new(move || pass_on(complaints)),
        ];
        for thread in threads {
            std::thread::Builder::new().spawn(thread).map_err(failed)?;
        }
        Ok(Pipes { questions, lines })
    }

    /// Ends the program, whoever waits for it.
    pub(super) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        self.end();
    }

    fn end(&self) {
        if let Some(child) = &mut *locked(&self.child) {
            keeper::end_group(child.id());
            let _ = child.kill();
        }
    }
}

impl Drop for CommandJudge {
    fn drop(&mut self) {
        self.end();
        let Some(mut child) = locked(&self.child).take() else { return };
        let _ = child.wait();
    }
}

/// The file that a program is.
#[expect(clippy::disallowed_methods, reason = "programs are looked for where shells do")]
fn found(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|path| path.is_file());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// Hands on questions, until one cannot be written. The program may take them at its own pace.
fn write_all(
    mut input: ChildStdin,
    asked: &Receiver<String>,
    lines: &Sender<Result<String, String>>,
) {
    for question in asked {
        if let Err(error) = input.write_all(question.as_bytes()) {
            // A program that has ended is told of by who reads from it.
            if error.kind() != std::io::ErrorKind::BrokenPipe {
                let _ = lines.send(Err(format!("takes no more rows: {error}")));
            }
            return;
        }
    }
}

/// Hands on lines, and at last that it ended.
fn read_all(output: ChildStdout, lines: &Sender<Result<String, String>>) {
    let mut output = BufReader::new(output);
    while let Some(line) = next_line(&mut output) {
        if lines.send(line).is_err() {
            return;
        }
    }
    let _ = lines.send(Err("ended before the last row".to_owned()));
}

/// Shows what it says on standard error, up to a limit; the rest is read and dropped.
fn pass_on(mut complaints: ChildStderr) {
    let mut stderr = std::io::stderr();
    let mut shown = (&mut complaints).take(MAX_COMPLAINTS);
    let _ = std::io::copy(&mut shown, &mut stderr);
    let mut rest = [0; 4096];
    let mut is_told = false;
    while let Ok(1..) = complaints.read(&mut rest) {
        if !std::mem::replace(&mut is_told, true) {
            let _ = writeln!(
                stderr,
                "\nnote: the judge has said {MAX_COMPLAINTS} bytes on standard error; \
                 the rest is dropped"
            );
        }
    }
}

/// The next line; None at the end.
fn next_line(output: &mut BufReader<ChildStdout>) -> Option<Result<String, String>> {
    let mut line = String::new();
    match output.take(MAX_LINE).read_line(&mut line) {
        Ok(0) => None,
        Ok(_) if line.ends_with('\n') => Some(Ok(line)),
        Ok(_) => Some(Err("said a line without an end".to_owned())),
        Err(error) => Some(Err(format!("cannot be read: {error}"))),
    }
}

/// A panic ends the process, so what a lock holds is whole.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_says_no_verdict_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let script = |text: &str| {
            let path = folder.path().join(format!("{}.sh", text.len()));
            std::fs::write(&path, text).unwrap();
            format!("sh {}", path.display())
        };
        let cases = [
            ("/no/such/judge".to_owned(), "cannot be started"),
            (script("read line"), "ended before the last row"),
            (script("read line; echo yes"), "said what is no verdict"),
            (script("read line; echo '{\"pass\": true}'"), "missing field `score`"),
            (script("read line; printf '{'"), "said a line without an end"),
        ];
        for (program, what) in cases {
            let judge = CommandJudge::new(program.clone(), None);
            let Err(CommandError::Failed(said)) = judge.ask("{}\n".to_owned()) else {
                panic!("{what}")
            };
            assert!(said.starts_with(&format!("`{program}` ")) && said.contains(what), "{said}");
        }
        // It would wait for ever: the run that ends does not wait for it.
        let judge = CommandJudge::new(script("read a; read b; sleep 1000"), None);
        let asked = std::thread::scope(|scope| {
            let asking = scope.spawn(|| judge.ask("{}\n".to_owned()));
            while locked(&judge.child).is_none() {
                std::thread::yield_now();
            }
            judge.stop();
            asking.join().unwrap()
        });
        assert_eq!(asked, Err(CommandError::Stopped));
    }

    #[test]
    fn a_program_that_never_answers_or_reads_is_ended_in_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("judge.sh");
        std::fs::write(&path, "sleep 1000").unwrap();
        let program = format!("sh {}", path.display());
        let judge = CommandJudge::new(program, Some(Duration::from_millis(200)));
        // More than a pipe holds.
        let asked = judge.ask("x".repeat(1 << 20));
        let Err(CommandError::Failed(said)) = asked else { panic!("{asked:?}") };
        assert!(said.contains("gave no verdict within 0.2 seconds"), "{said}");
    }
}
