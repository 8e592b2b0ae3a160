//! What may be read, what bytes are, and every way to be refused.

use std::fs;
use std::os::unix::fs::symlink;

use super::*;
use vllm_batch_media::{MediaId, MediaKind};

/// A valid image: one pixel.
const GIF: &[u8] = b"GIF89a\x01\0\x01\0\x80\0\0\xff\0\0\0\0\xff!\xf9\x04\0\0\0\0\0,\0\0\0\0\x01\0\x01\0\0\x02\x02D\x01\0;";

struct Given {
    _root: tempfile::TempDir,
    folder: PathBuf,
    reader: MediaReader,
}

/// Rows in `data`, with an image there and one beside it.
fn given(options: impl Fn(&Path) -> MediaOptions) -> Given {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("data");
    fs::create_dir_all(folder.join("sub")).unwrap();
    fs::write(folder.join("a.gif"), GIF).unwrap();
    fs::write(folder.join("sub/a b.gif"), GIF).unwrap();
    fs::write(root.path().join("out.gif"), GIF).unwrap();
    let mut reader = MediaReader::new(&options(root.path()));
    reader.begin(Place::Folder(&folder));
    Given { _root: root, folder, reader }
}

fn plain() -> Given {
    given(|_| MediaOptions::default())
}

impl Given {
    fn read(&self, reference: Reference) -> Result<Medium, Fault> {
        self.reader.medium(MediaKind::Image, &reference)
    }

    fn text(&self, text: &str) -> Result<Medium, Fault> {
        self.read(Reference::Text(text.to_owned()))
    }

    fn fault(&self, text: &str) -> Fault {
        self.text(text).expect_err(text)
    }
}

#[test]
fn a_file_a_uri_and_base64_are_one_image() {
    let given = plain();
    let encoded = base64::encode(GIF);
    let absolute = given.folder.join("a.gif").display().to_string();
    let same = [
        "a.gif".to_owned(),
        "./sub/../a.gif".to_owned(),
        "sub/a b.gif".to_owned(),
        absolute.clone(),
        format!("file://{absolute}"),
        format!("file://localhost{absolute}"),
        "file://sub/a%20b.gif".to_owned(),
        format!("data:image/gif;base64,{encoded}"),
        format!("DATA:Image/PNG;x=y;base64,{encoded}"),
        encoded.clone(),
    ];
    let expected = MediaId::new(MediaKind::Image, GIF);
    for text in same {
        assert_eq!(given.text(&text).unwrap_or_else(|e| panic!("{text}: {e:?}")).id(), expected);
    }
    assert_eq!(given.read(Reference::Base64(encoded)).unwrap().id(), expected);
}

#[test]
fn nothing_outside_of_the_folder_is_read() {
    let given = plain();
    symlink("../out.gif", given.folder.join("link.gif")).unwrap();
    symlink("..", given.folder.join("up")).unwrap();
    symlink("sub/a b.gif", given.folder.join("inside.gif")).unwrap();
    let outside = given.folder.parent().unwrap().join("out.gif").display().to_string();
    for text in [
        "../out.gif",
        "link.gif",
        "up/out.gif",
        "sub/../../out.gif",
        "../no_such.gif",
        "/etc/passwd",
        "/no/such/file",
        "file:///etc/passwd",
        "file:///%65tc/passwd",
        &outside,
    ] {
        let (code, what) = given.fault(text);
        assert_eq!(code, "media_forbidden", "{text}: {what}");
        assert!(what.contains("help: --allowed-local-media-path"), "{what}");
    }
    assert!(given.text("inside.gif").is_ok());
    // A folder whose name begins like the one that is allowed is another.
    let sibling = given.folder.parent().unwrap().join("data2");
    fs::create_dir(&sibling).unwrap();
    fs::write(sibling.join("a.gif"), GIF).unwrap();
    assert_eq!(given.fault("../data2/a.gif").0, "media_forbidden");
    let allowed = given_with_root();
    assert!(allowed.text("../out.gif").is_ok() && allowed.text(&outside).is_err());
}

fn given_with_root() -> Given {
    given(|root| MediaOptions { allowed_folder: Some(root.to_owned()), ..MediaOptions::default() })
}

#[test]
fn rows_of_no_folder_read_only_what_is_allowed() {
    let mut given = given_with_root();
    let absolute = given.folder.join("a.gif").display().to_string();
    given.reader.begin(Place::Store);
    assert!(given.text(&absolute).is_ok());
    assert_eq!(given.fault("a.gif").0, "media_forbidden");
}

#[test]
fn what_is_no_file_does_not_block() {
    let given = plain();
    let fifo = given.folder.join("fifo");
    let made = rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    );
    made.unwrap();
    for (text, what) in [
        ("fifo", "not a regular file"),
        ("sub", "not a regular file"),
        ("no.gif", "there is no such file; help: paths are relative to the folder"),
        ("a.gif/b", "cannot be read"),
    ] {
        let (code, message) = given.fault(text);
        assert_eq!(code, "media_not_found", "{message}");
        assert!(message.contains(what), "{message}");
    }
    let (_, message) = given.fault("no\u{1b}[2J\n.gif");
    assert!(!message.contains('\u{1b}') && !message.contains('\n'), "{message}");
}

#[test]
fn other_texts_are_refused_by_what_they_are() {
    let given = plain();
    let png = format!("data:text/plain;base64,{}", base64::encode(GIF));
    let long = "x".repeat(5000);
    for (text, code, what) in [
        ("https://a.b/c.png", "media_forbidden", "images of URLs are not read"),
        ("http://169.254.169.254/", "media_forbidden", "images of URLs are not read"),
        ("s3://bucket/a.png", "media_forbidden", "images of s3: are not read"),
        ("data:image/png;base64", "media_format", "no comma"),
        ("data:image/png,abc", "media_format", "not in base64"),
        (&png, "media_format", "has the type `text/plain`, which is no image"),
        ("data:image/png;base64,a b=", "media_format", "not valid base64"),
        ("data:image/png;base64,AAAA", "media_decode", ""),
        ("data:image/png;base64,", "media_decode", "no bytes"),
        ("file:///a%zz", "media_format", "is no file URL"),
        (&long, "media_format", "neither a path nor base64"),
    ] {
        let (found, message) = given.fault(text);
        assert_eq!(found, code, "{text}: {message}");
        assert!(message.contains(what), "{message}");
        assert!(message.len() < 400, "{message}");
    }
    // A text that could be base64 and is none of an image is a path.
    let path = "QUJD".repeat(20);
    assert_eq!(given.fault(&path).0, "media_not_found");
    fs::write(given.folder.join(&path), GIF).unwrap();
    assert!(given.text(&path).is_ok());
    fs::write(given.folder.join("text.gif"), "hello").unwrap();
    assert_eq!(given.fault("text.gif").0, "media_decode");
}

#[test]
fn bytes_of_a_file_are_read_again() {
    let given = plain();
    let medium = given.text("a.gif").unwrap();
    assert!(medium.decode_image().is_ok());
    fs::write(given.folder.join("a.gif"), b"GIF89a").unwrap();
    assert_eq!(medium.decode_image().unwrap_err().code(), "media_changed");
    fs::remove_file(given.folder.join("a.gif")).unwrap();
    assert_eq!(medium.decode_image().unwrap_err().code(), "media_not_found");
}

#[test]
fn a_file_that_is_too_large_is_not_read() {
    let given = plain();
    let file = fs::File::create(given.folder.join("large.gif")).unwrap();
    file.set_len(Limits::default().max_bytes + 1).unwrap();
    assert_eq!(given.fault("large.gif").0, "media_too_large");
}

#[test]
fn a_row_has_no_more_images_than_are_allowed() {
    let image = Named {
        kind: MediaKind::Image,
        place: "`image`".to_owned(),
        reference: Reference::Path("a.gif".into()),
    };
    let two = vec![image.clone(), image.clone()];
    let limited = given(|_| MediaOptions { max_images: Some(1), ..MediaOptions::default() });
    assert_eq!(limited.reader.read(&[image], 1).ok().flatten().unwrap().media.len(), 1);
    let error = limited.reader.read(&two, 1).err().unwrap();
    assert_eq!((error.code, error.line), ("media_count", 1));
    assert!(error.message.contains("the row has 2 images, and 1 are the most"), "{error:?}");
    let mut blind = plain();
    blind.reader.skip_images();
    assert!(blind.reader.read(&two, 1).unwrap().is_none());
}

/// A server that sends these bytes to whoever connects, and then nothing.
fn server(bytes: &'static [u8]) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/a.gif", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = std::io::Write::write_all(&mut stream, bytes);
            kept.push(stream);
        }
    });
    url
}

#[test]
fn a_server_that_says_nothing_or_too_much_costs_its_row_alone() {
    let options = UrlOptions { domains: vec!["127.0.0.1".to_owned()] };
    // A server that answers may be slow on a busy machine: one that does not is waited for less.
    let fetcher = || Fetcher::new(&options);
    let impatient = || fetcher().impatient(std::time::Duration::from_millis(200));
    for begun in [&b""[..], b"HTTP/1.1 200 x\r\nConnection: close\r\nContent-Length: 9\r\n\r\nGIF"]
    {
        let url = server(begun);
        let (code, what) = impatient().fetch(&url, 100).unwrap_err().into_fault(&url);
        assert_eq!(code, "media_timeout", "{what}");
    }
    let url = server(b"HTTP/1.1 200 x\r\nConnection: close\r\nContent-Length: 9\r\n\r\nGIF89a123");
    assert_eq!(fetcher().fetch(&url, 9).unwrap(), b"GIF89a123");
    let (code, what) = fetcher().fetch(&url, 8).unwrap_err().into_fault(&url);
    assert!(code == "media_too_large" && what.contains("more than 8 bytes"), "{what}");
    // Whoever wrote no address has no private one.
    let all = Fetcher::new(&UrlOptions::default());
    let (code, what) = all.fetch(&url, 9).unwrap_err().into_fault(&url);
    assert!(code == "media_forbidden" && what.contains("no address of the public"), "{what}");
}

#[test]
fn images_ahead_are_fetched_once_and_forgotten() {
    let options = UrlOptions { domains: vec!["127.0.0.1".to_owned()] };
    let url = server(b"HTTP/1.1 200 x\r\nConnection: close\r\nContent-Length: 9\r\n\r\nGIF89a123");
    let mut ahead = Ahead::new(Fetcher::new(&options));
    for _ in 0..2 {
        ahead.ask(&url);
    }
    let first = ahead.take(&url).unwrap();
    ahead.release(std::slice::from_ref(&url));
    assert!(Arc::ptr_eq(&first, &ahead.take(&url).unwrap()));
    ahead.release(std::slice::from_ref(&url));
    assert!(!Arc::ptr_eq(&first, &ahead.take(&url).unwrap()), "it was forgotten");
}
