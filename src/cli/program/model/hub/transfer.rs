//! One file on its way from the hub into the cache.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use ring::digest::{Context, SHA256};
use ureq::http::header::{CONTENT_LENGTH, CONTENT_RANGE, ETAG};
use ureq::http::{HeaderMap, StatusCode};

use super::DownloadProgress;
use super::cache::RepoCache;
use super::client::{Client, status};
use super::failure::Failure;
use super::names::{is_plain_etag, is_sha256};
use vllm_batch_dataset::network::hex;

/// Bytes that are read at a time.
const CHUNK: usize = 1 << 16;

/// One file of one commit.
pub(super) struct Transfer<'a> {
    pub client: &'a Client,
    pub cache: &'a RepoCache,
    /// What the server must say the file is of.
    pub commit: &'a str,
    /// Its name in the repository.
    pub file: &'a str,
    /// Its size in the list of files.
    pub listed_size: Option<u64>,
}

/// What the hub says of a file.
struct Facts {
    /// The name of its blob. Of large files it is the sha256.
    etag: String,
    size: Option<u64>,
}

/// A file that is not whole yet.
struct Part {
    file: File,
    path: PathBuf,
    len: u64,
    /// Of the bytes so far, where the name of the blob is a sha256.
    sha256: Option<Context>,
}

impl Transfer<'_> {
    /// Fetches the file, and says whether any bytes came.
    pub fn attempt(&self, progress: &mut dyn DownloadProgress) -> (Result<(), Failure>, bool) {
        let mut brought_bytes = false;
        let result = self.run(progress, &mut brought_bytes);
        if result.is_ok() && brought_bytes {
            progress.finish();
        }
        (result, brought_bytes)
    }

    fn run(
        &self,
        progress: &mut dyn DownloadProgress,
        brought_bytes: &mut bool,
    ) -> Result<(), Failure> {
        let facts = self.probe()?;
        let blob = self.cache.blob(&facts.etag);
        if !is_there(&blob, facts.size) {
            let mut part = Part::open(&blob, &facts)?;
            if facts.size != Some(part.len) {
                self.fetch(&mut part, &facts, progress, brought_bytes)?;
            }
            self.complete(part, &blob, &facts)?;
        }
        self.link(&facts.etag)
    }

    fn probe(&self) -> Result<Facts, Failure> {
        let repo = self.cache.repo().to_string();
        let headers = self.client.probe(&repo, self.commit, self.file)?;
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let etag = text("x-linked-etag").or_else(|| text(ETAG.as_str())).unwrap_or_default();
        let etag = etag.trim_start_matches("W/").trim_matches('"');
        // Both become parts of paths.
        if text("x-repo-commit") != Some(self.commit) || !is_plain_etag(etag) {
            return Err(Failure::Protocol(format!("{} is not of this commit", self.file)));
        }
        let is_here = !headers.contains_key("location");
        let length = is_here.then(|| number(&headers, CONTENT_LENGTH.as_str())).flatten();
        let size = number(&headers, "x-linked-size").or(self.listed_size).or(length);
        Ok(Facts { etag: etag.to_string(), size })
    }

    /// Appends what is missing, or starts over where the server does not continue.
    fn fetch(
        &self,
        part: &mut Part,
        facts: &Facts,
        progress: &mut dyn DownloadProgress,
        brought_bytes: &mut bool,
    ) -> Result<(), Failure> {
        let repo = self.cache.repo().to_string();
        let response = self.client.fetch(&repo, self.commit, self.file, part.len)?;
        match response.status() {
            StatusCode::OK => part.begin_anew()?,
            StatusCode::PARTIAL_CONTENT if first_byte(response.headers()) == Some(part.len) => {}
            StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE => {
                part.begin_anew()?;
                return Err(Failure::Damaged(format!("{} cannot be continued", self.file)));
            }
            _ => return Err(status(&response)),
        }
        let rest = number(response.headers(), CONTENT_LENGTH.as_str());
        let size = facts.size.or(rest.map(|rest| rest.saturating_add(part.len)));
        progress.start(self.file, size.unwrap_or(0), part.len);
        let mut body = response.into_body().into_reader();
        let mut buffer = vec![0; CHUNK];
        loop {
            let len = match body.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Failure::from(ureq::Error::from(error))),
            };
            part.append(&buffer[..len])?;
            *brought_bytes = true;
            progress.advance(len as u64);
            if facts.size.is_some_and(|size| part.len > size) {
                return self.damaged(part, "came with a wrong length");
            }
        }
    }

    /// Makes a blob of a part that is what the hub announced. Any other part is removed.
    fn complete(&self, mut part: Part, blob: &Path, facts: &Facts) -> Result<(), Failure> {
        if facts.size.is_some_and(|size| part.len != size) {
            return self.damaged(&part, "came with a wrong length");
        }
        if let Some(sha256) = part.sha256.take() {
            let found = hex(sha256.finish().as_ref());
            if found != facts.etag {
                let text = format!("came with wrong bytes: their sha256 is {found}");
                return self.damaged(&part, &format!("{text}, the hub's {}", facts.etag));
            }
        }
        part.file.sync_all()?;
        Ok(fs::rename(&part.path, blob)?)
    }

    fn damaged(&self, part: &Part, how: &str) -> Result<(), Failure> {
        fs::remove_file(&part.path)?;
        Err(Failure::Damaged(format!("{} {how}", self.file)))
    }

    /// `snapshots/<commit>/<file> -> ../../blobs/<etag>`, from a folder of it one `..` more.
    fn link(&self, etag: &str) -> Result<(), Failure> {
        let pointer = self.cache.snapshot(self.commit).join(self.file);
        pointer.parent().map_or(Ok(()), fs::create_dir_all)?;
        // Of an earlier try; a dangling one counts too.
        let _ = fs::remove_file(&pointer);
        let up = "../".repeat(2 + self.file.matches('/').count());
        let blob = Path::new(&up).join("blobs").join(etag);
        Ok(std::os::unix::fs::symlink(blob, pointer)?)
    }
}

impl Part {
    /// What an earlier try has left of a blob, or nothing.
    fn open(blob: &Path, facts: &Facts) -> Result<Self, Failure> {
        if let Some(folder) = blob.parent() {
            fs::create_dir_all(folder)?;
        }
        let path = blob.with_extension("part");
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path)?;
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            return Err(Failure::Locked);
        }
        let sha256 = is_sha256(&facts.etag).then(|| Context::new(&SHA256));
        let mut part = Self { file, path, len: 0, sha256 };
        let found = part.file.metadata()?.len();
        if facts.size.is_some_and(|size| found > size) {
            part.begin_anew()?;
        } else {
            part.take_over(found)?;
        }
        Ok(part)
    }

    fn take_over(&mut self, found: u64) -> Result<(), Failure> {
        if let Some(sha256) = &mut self.sha256 {
            let mut buffer = vec![0; CHUNK];
            let mut left = (&self.file).take(found);
            loop {
                match left.read(&mut buffer)? {
                    0 => break,
                    len => sha256.update(&buffer[..len]),
                }
            }
        }
        self.len = self.file.seek(SeekFrom::Start(found))?;
        Ok(())
    }

    fn begin_anew(&mut self) -> Result<(), Failure> {
        self.file.set_len(0)?;
        self.len = self.file.seek(SeekFrom::Start(0))?;
        self.sha256 = self.sha256.as_ref().map(|_| Context::new(&SHA256));
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.file.write_all(bytes)?;
        self.len += bytes.len() as u64;
        if let Some(sha256) = &mut self.sha256 {
            sha256.update(bytes);
        }
        Ok(())
    }
}

fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.trim().parse().ok()
}

/// `bytes FIRST-LAST/SIZE`
fn first_byte(headers: &HeaderMap) -> Option<u64> {
    let text = headers.get(CONTENT_RANGE)?.to_str().ok()?;
    text.strip_prefix("bytes ")?.split('-').next()?.trim().parse().ok()
}

pub(super) fn is_there(path: &Path, size: Option<u64>) -> bool {
    let found = fs::metadata(path).ok().filter(fs::Metadata::is_file).map(|found| found.len());
    found.is_some() && (size.is_none() || found == size)
}
