//! `Process`: one that draws, from the side of the run. Whatever it says is checked, and it is
//! waited for no longer than a time.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::child::NAME;
use super::frames::{
    self, DAMAGED, DRAW, HEAD, LARGE, LOAD, MAX_FILE, MAX_PAGES, MAX_TEXT, PIXELS, SIZES, UNREAD,
};
use super::patience::Patience;
use super::{Origin, PageSize, PageUnits};
use crate::input::row_error::code;
use vllm_batch_base::files;
use vllm_batch_media::MediaError;

/// Bytes of a file that are read at once.
const CHUNK: usize = 256 << 10;

/// Bytes of a bitmap before its rows.
const BITMAP_HEAD: usize = 54;

/// Why there is no answer.
pub(super) enum Failure {
    /// The file is at fault, and the process can be asked again.
    Fault(MediaError),
    /// The process is gone, or is given up.
    Ended(MediaError),
}

impl Failure {
    pub(super) fn into_error(self) -> MediaError {
        let (Failure::Fault(error) | Failure::Ended(error)) = self;
        error
    }
}

/// A process that draws. It is ended with this.
pub(super) struct Process {
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
    /// The file that it has.
    loaded: Option<[u8; 32]>,
}

impl Process {
    /// Starts the program again, as one that draws. Signals of the terminal do not reach it.
    pub(super) fn start() -> io::Result<Self> {
        let is_ours = std::env::current_exe()?
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with("vllm-batch"));
        if !is_ours {
            return Err(io::Error::other(
                "the program that draws them has to be called vllm-batch",
            ));
        }
        // The file of this process, also where another has its name by now.
        let mut command = Command::new("/proc/self/exe");
        command.arg(NAME).env_clear().process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        let input = child.stdin.take().expect("it is piped");
        let output = child.stdout.take().expect("it is piped");
        Ok(Self { child, input, output, loaded: None })
    }

    pub(super) fn loaded(&self) -> Option<&[u8; 32]> {
        self.loaded.as_ref()
    }

    /// Gives it the bytes of a file: their hash, and the sizes of the pages.
    pub(super) fn load(
        &mut self,
        origin: &Origin,
        limit: Duration,
    ) -> Result<([u8; 32], PageUnits), Failure> {
        let patience = Patience::new(limit, self.child.id());
        self.loaded = None;
        let hash = match origin {
            Origin::Bytes(bytes) => {
                check_len(bytes.len() as u64)?;
                frames::send(&mut self.input, LOAD, bytes).map_err(|_| ended())?;
                *blake3::hash(bytes).as_bytes()
            }
            Origin::File(path) => {
                let file = files::open(path).map_err(|error| unreadable(&error))?;
                self.send_file(file)?
            }
        };
        let (kind, len) = self.head(&patience)?;
        let bytes = match kind {
            SIZES if len % 8 == 0 && len <= 8 * MAX_PAGES as u64 => self.body(len, 0, &patience)?,
            _ => return Err(self.fault(kind, len, &patience)),
        };
        let float = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().expect("four bytes"));
        let sizes = bytes.chunks_exact(8).map(|size| (float(&size[..4]), float(&size[4..])));
        self.loaded = Some(hash);
        Ok((hash, sizes.collect()))
    }

    /// A page as a bitmap.
    pub(super) fn draw(
        &mut self,
        page: u32,
        size: PageSize,
        limit: Duration,
    ) -> Result<Vec<u8>, Failure> {
        let patience = Patience::new(limit, self.child.id());
        frames::send(&mut self.input, DRAW, &frames::page(page, size)).map_err(|_| ended())?;
        let (kind, len) = self.head(&patience)?;
        let expected = frames::stride(size.width) as u64 * u64::from(size.height);
        if kind != PIXELS || len != expected {
            return Err(self.fault(kind, len, &patience));
        }
        let mut bitmap = self.body(len, BITMAP_HEAD, &patience)?;
        bitmap[..BITMAP_HEAD].copy_from_slice(&bitmap_head(size, len));
        Ok(bitmap)
    }

    /// Hands a file on in pieces, as long as it was at the beginning.
    fn send_file(&mut self, mut file: File) -> Result<[u8; 32], Failure> {
        let len = file.metadata().map_err(|error| unreadable(&error))?.len();
        check_len(len)?;
        let mut hasher = blake3::Hasher::new();
        self.input.write_all(&frames::head(LOAD, len)).map_err(|_| ended())?;
        let (mut buffer, mut rest) = (vec![0; CHUNK.min(len as usize)], len);
        while rest > 0 {
            let most = buffer.len().min(rest as usize);
            // What it has begun to take has to come: without the rest it is of no more use.
            let read = match file.read(&mut buffer[..most]) {
                Ok(0) => return Err(Failure::Ended(cut_while_read())),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Failure::Ended(unreadable(&error).into_error())),
            };
            hasher.update(&buffer[..read]);
            self.input.write_all(&buffer[..read]).map_err(|_| ended())?;
            rest -= read as u64;
        }
        Ok(*hasher.finalize().as_bytes())
    }

    fn head(&mut self, patience: &Patience) -> Result<(u8, u64), Failure> {
        let mut head = [0; HEAD];
        self.read(&mut head, patience)?;
        Ok(frames::parsed_head(head))
    }

    /// Bytes behind a room for others.
    fn body(&mut self, len: u64, room: usize, patience: &Patience) -> Result<Vec<u8>, Failure> {
        let mut bytes = vec![0; room + len as usize];
        self.read(&mut bytes[room..], patience)?;
        Ok(bytes)
    }

    fn read(&mut self, mut buffer: &mut [u8], patience: &Patience) -> Result<(), Failure> {
        while !buffer.is_empty() {
            let left = patience.left().ok_or_else(|| Failure::Ended(late()))?;
            let left =
                Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let mut waited = [PollFd::new(&self.output, PollFlags::IN)];
            match poll(&mut waited, Some(&left)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                Ok(_) => {}
                Err(_) => return Err(ended()),
            }
            match self.output.read(buffer) {
                Ok(0) => return Err(ended()),
                Ok(read) => buffer = &mut buffer[read..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(ended()),
            }
        }
        Ok(())
    }

    /// What it says is wrong with the file. It is given up where it says something else.
    fn fault(&mut self, kind: u8, len: u64, patience: &Patience) -> Failure {
        if !matches!(kind, DAMAGED | UNREAD | LARGE) || len > MAX_TEXT {
            return ended();
        }
        let text = match self.body(len, 0, patience) {
            Ok(text) => String::from_utf8_lossy(&text).into_owned(),
            Err(failure) => return failure,
        };
        Failure::Fault(match kind {
            UNREAD => MediaError::Unsupported(text),
            LARGE => MediaError::TooLarge(text),
            _ => MediaError::Decode(text),
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The head of a bitmap of 24 bits, whose rows are stored from above.
fn bitmap_head(size: PageSize, len: u64) -> [u8; BITMAP_HEAD] {
    let mut head = [0; BITMAP_HEAD];
    let mut put = |at: usize, value: u32| head[at..at + 4].copy_from_slice(&value.to_le_bytes());
    put(2, BITMAP_HEAD as u32 + len as u32);
    put(10, BITMAP_HEAD as u32);
    put(14, 40);
    put(18, size.width);
    put(22, (size.height as i32).wrapping_neg() as u32);
    put(26, 1 | 24 << 16);
    put(34, len as u32);
    head[..2].copy_from_slice(b"BM");
    head
}

fn check_len(len: u64) -> Result<(), Failure> {
    match len > MAX_FILE {
        false => Ok(()),
        true => Err(Failure::Fault(MediaError::TooLarge(format!(
            "the file has {len} bytes, and {MAX_FILE} are the most; help: split it"
        )))),
    }
}

fn unreadable(error: &io::Error) -> Failure {
    Failure::Fault(MediaError::unreadable(error))
}

fn cut_while_read() -> MediaError {
    MediaError::Changed("it became shorter while it was read".to_owned())
}

fn ended() -> Failure {
    Failure::Ended(MediaError::Decode(
        "the process that draws pages ended over it: the file is damaged, or needs more memory \
         than such a process may have"
            .to_owned(),
    ))
}

fn late() -> MediaError {
    let what = "it takes longer than a page may; help: --page-timeout SECONDS gives it more time";
    MediaError::Unfetched(code::MEDIA_TIMEOUT, what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_batch_media::{Limits, decode};

    #[test]
    fn a_bitmap_is_what_a_decoder_of_images_reads() {
        let size = PageSize { width: 3, height: 2, scale: 1.0 };
        let mut bytes = bitmap_head(size, 24).to_vec();
        bytes.extend((0..24).map(|at| at as u8));
        let image = decode(&bytes, &Limits::default()).unwrap();
        assert_eq!((image.width(), image.height()), (3, 2));
        assert_eq!(image.pixels()[..6], [2, 1, 0, 5, 4, 3]);
        assert_eq!(image.pixels()[9..12], [14, 13, 12]);
    }
}
