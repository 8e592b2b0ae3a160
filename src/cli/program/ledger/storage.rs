//! `Storage`: every operation on the files of an output, behind a trait, so that a test can stop,
//! tear, lose or fail each of them (`tests/files/crash`). `Disk` is the real one.

use std::fs::{self, File, Metadata, Permissions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
use rustix::io::Errno;

use super::names::folder_of;

/// A file system, as far as a run needs one.
pub trait Storage: Send + Sync {
    /// Opens a file without touching its content.
    ///
    /// # Errors
    /// The system's: `NotFound` and `AlreadyExists` among them, by `access`.
    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn StoredFile>>;

    /// Gives a file another name, in place of the file that has it.
    ///
    /// # Errors
    /// The system's.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a name.
    ///
    /// # Errors
    /// The system's.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in a file's folder durable: those created, renamed and removed there.
    ///
    /// # Errors
    /// The system's.
    fn sync_folder_of(&self, path: &Path) -> io::Result<()>;

    /// What has this name; None: nothing.
    fn kind(&self, path: &Path) -> Option<FileKind>;

    /// What keeps a file from getting this name when it is complete, and how.
    ///
    /// # Errors
    /// The system's.
    fn in_the_way(&self, _path: &Path) -> io::Result<Option<(PathBuf, &'static str)>> {
        Ok(None)
    }
}

/// What a name is that of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// A symbolic link, whatever it points to.
    Link,
    /// A device, a pipe or a socket.
    Other,
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// To be read; it exists.
    Read,
    /// To be read and written; it exists.
    Write,
    /// To be read and written; it does not exist yet.
    Create,
}

/// An open file. Positions are explicit, so that nothing depends on what was done before.
pub trait StoredFile: Send {
    /// Reads at a position; 0 bytes at the end.
    ///
    /// # Errors
    /// The system's.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes at a position, perhaps not all.
    ///
    /// # Errors
    /// The system's.
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<usize>;

    /// Its length in bytes.
    ///
    /// # Errors
    /// The system's.
    fn length(&self) -> io::Result<u64>;

    /// Cuts it to a length.
    ///
    /// # Errors
    /// The system's.
    fn set_length(&mut self, length: u64) -> io::Result<()>;

    /// Makes its content durable. After an error nobody knows what is: it must not be asked again.
    ///
    /// # Errors
    /// The system's.
    fn sync(&mut self) -> io::Result<()>;

    /// Takes the lock that keeps other runs out. False: another one has it. A file system without
    /// locks says true.
    fn try_lock(&self) -> bool;

    /// Whether a name is that of this very file, and no link to it.
    fn is_named(&self, path: &Path) -> bool;

    /// Lets those read and write it who may do so with the file of this name, if there is one; and
    /// its owner.
    ///
    /// # Errors
    /// The system's.
    fn take_permissions_of(&self, path: &Path) -> io::Result<()>;
}

/// Writes all bytes at a position.
///
/// # Errors
/// The file's.
pub fn write_all_at(
    file: &mut dyn StoredFile,
    mut bytes: &[u8],
    mut offset: u64,
) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write_at(bytes, offset) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => {
                bytes = &bytes[count..];
                offset += count as u64;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// blake3 of a file's bytes, as 64 hexadecimal digits.
///
/// # Errors
/// The file's.
pub fn hash_of(file: &dyn StoredFile) -> io::Result<String> {
    let (mut hasher, mut buffer, mut at) = (blake3::Hasher::new(), vec![0; 1 << 20], 0);
    loop {
        match read_at_most(file, &mut buffer, at)? {
            0 => return Ok(hasher.finalize().to_hex().to_string()),
            count => {
                hasher.update(&buffer[..count]);
                at += count as u64;
            }
        }
    }
}

/// Fills a buffer from a position; returns how much of it there was.
///
/// # Errors
/// The file's.
pub fn read_at_most(file: &dyn StoredFile, bytes: &mut [u8], mut offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], offset) {
            Ok(0) => break,
            Ok(count) => {
                filled += count;
                offset += count as u64;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// The file system of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Disk;

impl Storage for Disk {
    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn StoredFile>> {
        let mut options = File::options();
        // To open a pipe would wait for its other end.
        let mut flags = libc::O_NONBLOCK;
        options.read(true);
        match access {
            Access::Read => {}
            Access::Write => {
                flags |= libc::O_NOFOLLOW;
                options.write(true);
            }
            Access::Create => drop(options.write(true).create_new(true)),
        }
        let file = options.custom_flags(flags).open(path)?;
        match file.metadata()?.is_file() {
            true => Ok(Box::new(file)),
            false => Err(io::Error::other("it is not a regular file")),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_folder_of(&self, path: &Path) -> io::Result<()> {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
    }

    fn kind(&self, path: &Path) -> Option<FileKind> {
        let found = fs::symlink_metadata(path).ok()?.file_type();
        Some(if found.is_file() {
            FileKind::File
        } else if found.is_dir() {
            FileKind::Folder
        } else if found.is_symlink() {
            FileKind::Link
        } else {
            FileKind::Other
        })
    }

    fn in_the_way(&self, path: &Path) -> io::Result<Option<(PathBuf, &'static str)>> {
        let folder = folder_of(path);
        for name in [folder, path] {
            if is_fixed(name)? {
                let what = "immutable, append-only (see lsattr) or a mount point";
                return Ok(Some((name.to_owned(), what)));
            }
        }
        // In a folder like /tmp the files of others stay.
        let (Ok(folder), Ok(found)) = (fs::metadata(folder), fs::symlink_metadata(path)) else {
            return Ok(None);
        };
        let is_sticky = folder.mode() & libc::S_ISVTX != 0;
        let own = fs::metadata("/proc/self").map_or(0, |process| process.uid());
        let stays = is_sticky && own != 0 && own != found.uid() && own != folder.uid();
        Ok(stays.then(|| (path.to_owned(), "another user's, in a folder where those stay")))
    }
}

/// A file that cannot be changed or be given another name, nor anything take its place.
fn is_fixed(path: &Path) -> io::Result<bool> {
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    let found = match statx(CWD, path, flags, StatxFlags::empty()) {
        Err(Errno::NOENT) => return Ok(false),
        // A kernel or a sandbox that does not tell.
        Err(Errno::NOSYS | Errno::PERM) => return Ok(false),
        found => found?,
    };
    let fixed = StatxAttributes::IMMUTABLE | StatxAttributes::APPEND;
    let is_mount = StatxAttributes::MOUNT_ROOT;
    let is_folder = path.is_dir();
    Ok(found.stx_attributes.intersects(fixed)
        || !is_folder && found.stx_attributes.contains(is_mount))
}

impl StoredFile for File {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, bytes, offset)
    }

    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        FileExt::write_at(self, bytes, offset)
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn set_length(&mut self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }

    fn try_lock(&self) -> bool {
        !matches!(File::try_lock(self), Err(TryLockError::WouldBlock))
    }

    fn is_named(&self, path: &Path) -> bool {
        let named = fs::symlink_metadata(path);
        named.is_ok_and(|named| self.metadata().is_ok_and(|own| identity(&named) == identity(&own)))
    }

    fn take_permissions_of(&self, path: &Path) -> io::Result<()> {
        let Ok(found) = fs::metadata(path) else { return Ok(()) };
        let own = self.metadata()?.mode() & 0o777;
        // Its owner continues a run that was killed, even to replace a file that is read-only.
        match found.mode() & 0o777 | 0o600 {
            wanted if wanted != own => self.set_permissions(Permissions::from_mode(wanted)),
            _ => Ok(()),
        }
    }
}

/// What two names of one file have in common.
pub fn identity(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}
