//! The process that draws, from its own side. It reads no file and writes none, has limited memory,
//! and ends when the run that it works for is gone.

use std::ffi::OsString;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::draw::{Fault, OpenPdf};
use super::frames::{self, DAMAGED, DRAW, LARGE, LOAD, MAX_FILE, MAX_TEXT, PIXELS, SIZES, UNREAD};
use crate::terminal::exit::Exit;

/// What the first argument of the process is.
pub(super) const NAME: &str = "--draw-pages";

/// Bytes of addresses that it may have.
const MAX_MEMORY: u64 = 2 << 30;

/// Bytes of the stack: objects of a file lie within each other.
const STACK: usize = 64 << 20;

/// What the process does, if these arguments make it one: it answers requests of its standard input
/// until that ends.
pub fn serve(args: &[OsString]) -> Option<Exit> {
    let [_, name] = args else { return None };
    if name != NAME {
        return None;
    }
    limit(Resource::As, MAX_MEMORY);
    limit(Resource::Core, 0);
    limit(Resource::Fsize, 0);
    let (requests, received) = sync_channel(1);
    let worker = thread::Builder::new().stack_size(STACK).spawn(move || work(&received));
    if worker.is_err() {
        return Some(Exit::Internal);
    }
    // Here, so that a run that is gone ends a page in its middle.
    let mut input = io::stdin().lock();
    while let Ok(Some(frame)) = frames::receive(&mut input, MAX_FILE) {
        if requests.send(frame).is_err() {
            break;
        }
    }
    process::exit(0);
}

fn limit(resource: Resource, most: u64) {
    let now = getrlimit(resource);
    let within = |bound: Option<u64>| Some(bound.map_or(most, |bound| bound.min(most)));
    let _ =
        setrlimit(resource, Rlimit { current: within(now.current), maximum: within(now.maximum) });
}

fn work(requests: &Receiver<(u8, Vec<u8>)>) {
    let mut open: Option<OpenPdf> = None;
    let mut output = io::stdout().lock();
    while let Ok((kind, bytes)) = requests.recv() {
        let answered = catch_unwind(AssertUnwindSafe(|| answer(&mut open, kind, bytes)));
        let (kind, answer) = match answered {
            Ok(Ok(answer)) => answer,
            Ok(Err(fault)) => said(fault),
            Err(_) => {
                open = None;
                said(Fault::Damaged("the file is damaged".to_owned()))
            }
        };
        if frames::send(&mut output, kind, &answer).is_err() {
            break;
        }
    }
    let _ = output.flush();
    process::exit(0);
}

fn answer(open: &mut Option<OpenPdf>, kind: u8, bytes: Vec<u8>) -> Result<(u8, Vec<u8>), Fault> {
    match kind {
        LOAD => {
            *open = None;
            let sizes = open.insert(OpenPdf::new(bytes)?).sizes();
            let sizes = sizes.flat_map(|(width, height)| [width, height]);
            Ok((SIZES, sizes.flat_map(f32::to_le_bytes).collect()))
        }
        DRAW => {
            let asked = open.as_mut().zip(frames::parsed_page(&bytes));
            let wrong = || Fault::Damaged("there is no such page".to_owned());
            let (pdf, (page, size)) = asked.ok_or_else(wrong)?;
            Ok((PIXELS, pdf.rows(page, size)?))
        }
        _ => Err(Fault::Damaged("no such request".to_owned())),
    }
}

fn said(fault: Fault) -> (u8, Vec<u8>) {
    let (kind, text) = match fault {
        Fault::Damaged(text) => (DAMAGED, text),
        Fault::Unread(text) => (UNREAD, text),
        Fault::Large(text) => (LARGE, text),
    };
    let mut text = text.into_bytes();
    text.truncate(MAX_TEXT as usize);
    (kind, text)
}
