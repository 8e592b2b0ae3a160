//! `CommandJudge`: a program of the user's that judges, one line of JSON in and one out for each
//! answer. It is started once, at the first answer, and lives as long as the run.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use super::criterion::Scored;

/// Longest line of a verdict.
const MAX_LINE: u64 = 1 << 20;

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

/// What it says of an answer. Other fields are its own.
#[derive(Deserialize)]
struct Said {
    score: f64,
    pass: Option<bool>,
    reason: Option<String>,
}

/// The two ends of a program.
#[derive(Debug)]
struct Pipes {
    input: ChildStdin,
    /// Its lines, each with its end.
    lines: Receiver<Result<String, String>>,
}

/// A program that judges.
#[derive(Debug)]
pub struct CommandJudge {
    /// Words with spaces between them.
    program: String,
    /// Apart from its pipes: it may have to go while somebody reads from it.
    child: Mutex<Option<Child>>,
    pipes: Mutex<Option<Pipes>>,
    is_stopped: AtomicBool,
}

impl CommandJudge {
    /// A program that is not started yet.
    pub fn new(program: String) -> Self {
        Self {
            program,
            child: Mutex::default(),
            pipes: Mutex::default(),
            is_stopped: AtomicBool::new(false),
        }
    }

    /// Asks for a verdict.
    ///
    /// # Errors
    /// The program cannot be started, has ended, or says something else than a verdict; or the run
    /// ends.
    pub fn ask(&self, question: &Value) -> Result<Scored, CommandError> {
        let mut pipes = locked(&self.pipes);
        let said = self.said(&mut pipes, question);
        said.map_err(|what| match self.is_stopped.load(Ordering::Relaxed) {
            true => CommandError::Stopped,
            false => CommandError::Failed(format!("`{}` {what}", self.program)),
        })
    }

    fn said(&self, pipes: &mut Option<Pipes>, question: &Value) -> Result<Scored, String> {
        if pipes.is_none() {
            *pipes = Some(self.start()?);
        }
        let pipes = pipes.as_mut().expect("started above");
        let broken = |error: std::io::Error| format!("takes no more rows: {error}");
        pipes.input.write_all(format!("{question}\n").as_bytes()).map_err(broken)?;
        let line = loop {
            match pipes.lines.recv_timeout(TICK) {
                Ok(line) => break line?,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err("ended before the last row".to_owned());
                }
                Err(RecvTimeoutError::Timeout) if self.is_stopped.load(Ordering::Relaxed) => {
                    return Err("was stopped".to_owned());
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
        let mut words = self.program.split_whitespace();
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
        // Ctrl-C is for the run, which then ends the program.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let failed = |error: std::io::Error| format!("cannot be started: {error}");
        let mut child = command.spawn().map_err(failed)?;
        let (input, output) = child.stdin.take().zip(child.stdout.take()).expect("both are piped");
        *locked(&self.child) = Some(child);
        let (sender, lines) = channel();
        // What the program has started may hold its output open for ever, so nobody waits for it.
        let reading = move || {
            let mut output = BufReader::new(output);
            while let Some(line) = next_line(&mut output) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        };
        std::thread::Builder::new().spawn(reading).map_err(failed)?;
        Ok(Pipes { input, lines })
    }

    /// Ends the program, whoever waits for it.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        if let Some(child) = &mut *locked(&self.child) {
            let _ = child.kill();
        }
    }
}

impl Drop for CommandJudge {
    fn drop(&mut self) {
        let Some(mut child) = locked(&self.child).take() else { return };
        let _ = child.kill();
        let _ = child.wait();
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
    use serde_json::json;

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
            let judge = CommandJudge::new(program.clone());
            let Err(CommandError::Failed(said)) = judge.ask(&json!({})) else { panic!("{what}") };
            assert!(said.starts_with(&format!("`{program}` ")) && said.contains(what), "{said}");
        }
        // It would wait for ever: the run that ends does not wait for it.
        let judge = CommandJudge::new(script("read a; read b; sleep 1000"));
        let asked = std::thread::scope(|scope| {
            let asking = scope.spawn(|| judge.ask(&json!({})));
            while locked(&judge.child).is_none() {
                std::thread::yield_now();
            }
            judge.stop();
            asking.join().unwrap()
        });
        assert_eq!(asked, Err(CommandError::Stopped));
    }
}
