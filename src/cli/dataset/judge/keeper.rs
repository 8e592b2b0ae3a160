//! The process between a run and the program that judges. It ends the program, and all that this
//! has started, when the run is gone: also by a signal that no process hears of.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::process::parent_id;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};

use crate::terminal::exit::Exit;

/// What the first argument of the process is.
pub const NAME: &str = "--keep-judge";

/// How often it looks.
const TICK: Duration = Duration::from_millis(50);

/// The command that keeps a program for this process: ours, unless another program has the library
/// in it.
pub fn command(words: &[&str]) -> Command {
    let ours = std::env::current_exe().ok().filter(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vllm-batch"))
    });
    let Some(ours) = ours else {
        let mut command = Command::new(words.first().copied().unwrap_or_default());
        command.args(words.iter().skip(1));
        return command;
    };
    let mut command = Command::new(ours);
    command.arg(NAME).arg(std::process::id().to_string()).args(words);
    command
}

/// Ends a process that leads a group, and all of the group.
pub fn end_group(leader: u32) {
    let pid = i32::try_from(leader).ok().and_then(Pid::from_raw);
    if let Some(pid) = pid {
        let _ = kill_process_group(pid, Signal::KILL);
    }
}

/// What the process does, if these arguments make it one: it runs the program and waits until one
/// of the two others ends.
pub fn keep(args: &[OsString]) -> Option<Exit> {
    let [_, name, parent, program, words @ ..] = args else { return None };
    let parent: u32 = parent.to_str().filter(|_| name == NAME)?.parse().ok()?;
    let mut child = match Command::new(program).args(words).spawn() {
        Ok(child) => child,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{}: {error}", program.display());
            return Some(Exit::Internal);
        }
    };
    loop {
        match child.try_wait() {
            Ok(None) if parent_id() == parent => std::thread::sleep(TICK),
            Ok(None) => {
                // The group is this process's, which is its leader.
                end_group(std::process::id());
                return Some(Exit::Internal);
            }
            _ => return Some(Exit::Success),
        }
    }
}
