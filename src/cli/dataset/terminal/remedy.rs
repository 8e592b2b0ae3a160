//! What to do about a file that the system refuses. Errors of files come as texts from many places,
//! and the system's own words end with their number: it decides, not the place.

use vllm_batch_base::machine::error_number;

/// What helps against the refusal that a message tells of. None: the message has no number of the
/// system's, or one that says only that there is no such file.
pub fn of(message: &str) -> Option<&'static str> {
    let reads = ["cannot read", "cannot open", "cannot list", "cannot be used"];
    let writes = !reads.iter().any(|verb| message.contains(verb)) && message.contains("cannot ");
    if ["it is a folder", "is a directory"].iter().any(|end| message.ends_with(end)) {
        return Some(folder(writes));
    }
    if message.ends_with("it is not a regular file") {
        return Some("name a regular file: a folder, a pipe or a device cannot be read again");
    }
    Some(match error_number(message)? {
        libc::EACCES | libc::EPERM if writes => {
            "choose a folder that this user may write to, or change its permissions (ls -ld)"
        }
        libc::EACCES | libc::EPERM => {
            "let this user read the file and enter the folders above it (ls -ld shows permissions)"
        }
        libc::EISDIR => folder(writes),
        libc::ENOTDIR => "check the path: one of its folders is a file",
        libc::ENAMETOOLONG => "use a shorter name",
        libc::ELOOP => "name the file itself: its symbolic links lead back to each other",
        libc::EROFS => "choose a folder on another disk: this one is mounted read-only",
        libc::ENOSPC | libc::EDQUOT => "free some space",
        libc::EFBIG => "raise ulimit -f, or choose a disk that takes larger files",
        libc::EIO => "check the disk or its connection: dmesg says more",
        libc::ESTALE => "mount the network folder again: the server no longer knows the file",
        libc::EBUSY | libc::ETXTBSY => "wait until the program that uses the file ends",
        _ => return None,
    })
}

fn folder(writes: bool) -> &'static str {
    match writes {
        true => "give the name of a file in that folder",
        false => "name a file in that folder",
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn each_refusal_has_a_remedy_of_its_own() {
        let said = |verb: &str, number: i32| {
            let error = io::Error::from_raw_os_error(number);
            of(&format!("cannot {verb} a.jsonl: {error}"))
        };
        let numbers = [
            libc::EACCES,
            libc::EISDIR,
            libc::ENOTDIR,
            libc::ENAMETOOLONG,
            libc::ELOOP,
            libc::EROFS,
            libc::EIO,
        ];
        for (index, number) in numbers.iter().enumerate() {
            let remedy = said("read", *number).expect("a remedy");
            assert!(!remedy.contains("check its name"), "{remedy}");
            for other in &numbers[..index] {
                assert_ne!(said("read", *other), Some(remedy));
            }
        }
        assert!(said("create", libc::EACCES).is_some_and(|help| help.contains("write")));
        assert_ne!(said("create", libc::EACCES), said("read", libc::EACCES));
        assert_eq!(said("read", libc::EPERM), said("read", libc::EACCES));
        // There is no such file: whoever looked for it knows where it might be.
        assert_eq!(said("read", libc::ENOENT), None);
        assert_eq!(of("the row has no prompt"), None);
        assert_eq!(of("cannot read dir: it is a folder"), Some("name a file in that folder"));
    }
}
