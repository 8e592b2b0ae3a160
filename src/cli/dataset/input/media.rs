//! Images and recordings of rows: from what a row says of one to its bytes. Files are read beneath
//! the folder of the dataset's file, and beneath the one that the user allows; nothing else is.

mod ahead;
mod data_uri;
mod documents;
mod fetched;
mod local;
mod names;
mod reference;
#[cfg(test)]
mod tests;
mod urls;

use std::borrow::Cow;
use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::ahead::Ahead;
use self::data_uri::{DataUri, decoded};
pub use self::fetched::FetchedImage;
use self::local::Folders;
pub(in crate::input) use self::names::{SOUNDS, kind_of_name};
pub(in crate::input) use self::reference::{EXPECTED, is_nothing};
pub use self::reference::{Named, Reference};
use self::urls::Fetcher;
pub use self::urls::UrlOptions;
use super::base64;
use super::parts::Drawing;
use super::pdf::Renderers;
use super::reader::{Member, Members};
use super::referred::Referred;
use super::row_error::{RowError, code};
use crate::terminal::flags::with_flags;
use vllm_batch_base::files::quoted;
use vllm_batch_media::{Encoded, Format, Limits, MediaError, MediaKind, Medium, SoundFormat};

/// The most images of a row, as in vLLM.
pub const DEFAULT_MAX_IMAGES: usize = 999;

/// Characters of the shortest text that may be base64 of a medium: names of files are shorter.
const MIN_BARE_BASE64: usize = 32;

/// Bytes of the longest path.
const MAX_PATH: usize = 4096;

/// Flags of images and recordings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MediaOptions {
    /// `--allowed-local-media-path`: a folder whose files may be read.
    pub allowed_folder: Option<PathBuf>,
    /// `--limit-mm-per-prompt`: the most images of a row.
    pub max_images: Option<usize>,
    /// The same of recordings.
    pub max_sounds: Option<usize>,
    /// `--allow-media-urls`: which URLs are asked for.
    pub urls: Option<UrlOptions>,
    /// How pages of documents are drawn.
    pub drawing: Drawing,
}

/// Where rows come from: what their paths are relative to, and which files they may name.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// A file in this folder, or standard input: files beneath the folder.
    Folder(&'a Path),
    /// On no disk of this machine: no files.
    Store,
    /// Each file was named by the user: that file, relative to the current folder.
    Named,
    /// The files are the rows, and were found beneath this folder: those beneath it, relative to
    /// the current one.
    Beneath(&'a Path),
}

/// Reads the media of rows, one file of rows after the other.
#[derive(Debug)]
pub struct MediaReader {
    folders: Folders,
    max_images: usize,
    max_sounds: usize,
    /// Whether a row's media are looked at.
    reads: bool,
    /// Fetches images at URLs.
    ahead: Option<Ahead>,
    /// Images of a row, while they are looked for and not read.
    sought: RefCell<Option<Vec<Named>>>,
    /// Images that came with the row, by their names.
    members: Members,
    /// Images that rows of the table name by the `index` of another row.
    referred: Option<Referred>,
    /// What the machine lacked for an image, which no row is to blame for.
    refused: RefCell<Option<io::Error>>,
    /// Images of the row that an earlier run fetched: they are what they were.
    recalled: Vec<FetchedImage>,
    /// Images of the row that came from URLs.
    fetched: RefCell<Vec<FetchedImage>>,
    /// Nothing is asked for ahead.
    waits: bool,
    /// Who draws pages of documents, and how.
    renderers: Arc<Renderers>,
    drawing: Drawing,
}

/// The images of a row.
pub(super) struct Read {
    /// All of them, in their order.
    pub(super) media: Vec<Arc<Medium>>,
    /// How many each of those that were named is: a document is its pages.
    pub(super) counts: Vec<usize>,
}

/// Why a row's image cannot be used: a code, and what is wrong.
pub(super) type Fault = (&'static str, String);

impl MediaReader {
    /// A reader for rows of no file of this machine.
    pub fn new(options: &MediaOptions) -> Self {
        Self {
            folders: Folders::new(options.allowed_folder.as_deref()),
            max_images: options.max_images.unwrap_or(DEFAULT_MAX_IMAGES),
            max_sounds: options.max_sounds.unwrap_or(DEFAULT_MAX_IMAGES),
            reads: true,
            ahead: options.urls.as_ref().map(|urls| Ahead::new(Fetcher::new(urls))),
            sought: RefCell::default(),
            members: Members::new(),
            referred: None,
            refused: RefCell::default(),
            recalled: Vec::new(),
            fetched: RefCell::default(),
            waits: false,
            renderers: Arc::new(Renderers::new(options.drawing.max_seconds)),
            drawing: options.drawing,
        }
    }

    /// Goes on with the rows of another place.
    pub fn begin(&mut self, place: Place<'_>) {
        self.folders.begin(place);
    }

    /// Goes on with a row that has these images with it.
    pub(super) fn attach(&mut self, members: Members) {
        self.members = members;
    }

    /// Goes on with a row of which an earlier run fetched these images.
    pub(super) fn recall(&mut self, images: Vec<FetchedImage>) {
        self.recalled = images;
    }

    /// The images of the row that came from URLs, and whether some are known from an earlier run.
    pub(super) fn take_fetched(&self) -> (Vec<FetchedImage>, bool) {
        (self.fetched.take(), !self.recalled.is_empty())
    }

    /// Asks for nothing ahead, until it is known what an earlier run fetched.
    pub(super) fn wait(&mut self, waits: bool) {
        self.waits = waits;
    }

    /// Goes on with the rows of a table, some of which may name others.
    pub fn refer(&mut self, referred: Option<Referred>) {
        self.referred = referred;
    }

    /// Images that rows name by another row.
    pub(super) fn referred(&self) -> Option<&Referred> {
        self.referred.as_ref()
    }

    /// What the machine lacked for an image since the last call.
    pub(super) fn take_refusal(&self) -> Option<io::Error> {
        self.refused.take()
    }

    /// Whether images at URLs may be asked for before their rows are read.
    pub(super) fn may_ask(&self) -> bool {
        self.reads && !self.waits && self.ahead.as_ref().is_some_and(Ahead::has_room)
    }

    /// The images of a row, while `read` is called for it. None is read.
    pub(super) fn seek(&self, read: impl FnOnce()) -> Vec<Named> {
        self.sought.replace(Some(Vec::new()));
        read();
        self.sought.take().unwrap_or_default()
    }

    /// Asks for images of a row that comes later.
    pub(super) fn ask(&mut self, urls: &[String]) {
        if let Some(ahead) = &mut self.ahead {
            urls.iter().for_each(|url| ahead.ask(url));
        }
    }

    /// Forgets images of a row that was read.
    pub(super) fn release(&self, urls: &[String]) {
        if let Some(ahead) = self.ahead.as_ref().filter(|_| !urls.is_empty()) {
            ahead.release(urls);
        }
    }

    /// Looks at no image from now on: rows with images become chats without.
    pub fn skip_images(&mut self) {
        self.reads = false;
    }

    /// The media of a row, in their order. None: they are not looked at.
    ///
    /// # Errors
    /// There are too many, or one cannot be used.
    pub(super) fn read(&self, images: &[Named], line: u64) -> Result<Option<Read>, RowError> {
        let num = |kind| images.iter().filter(|image| image.kind == kind).count();
        for (kind, most) in
            [(MediaKind::Image, self.max_images), (MediaKind::Sound, self.max_sounds)]
        {
            if let Some(what) = too_many(kind, num(kind), most) {
                return Err(RowError::new(code::MEDIA_COUNT, line, what));
            }
        }
        if let Some(sought) = self.sought.borrow_mut().as_mut() {
            sought.extend_from_slice(images);
            return Ok(None);
        }
        if !self.reads {
            return Ok(None);
        }
        let mut num_images = num(MediaKind::Image);
        let mut read = Read { media: Vec::with_capacity(images.len()), counts: Vec::new() };
        for image in images {
            let most = self.max_images.saturating_sub(num_images.saturating_sub(1));
            let media = match &image.reference {
                Reference::Document(text) => self.pages(text, most),
                reference => self.medium(image.kind, reference).map(|medium| vec![medium]),
            };
            let media = media.map_err(|(code, what)| {
                RowError::new(code, line, with_flags(&format!("{}: {what}", image.place)))
            })?;
            // A document is as many images as it has pages.
            num_images += media.len().saturating_sub(1);
            if let Some(what) = too_many(MediaKind::Image, num_images, self.max_images) {
                return Err(RowError::new(code::MEDIA_COUNT, line, what));
            }
            read.counts.push(media.len());
            read.media.extend(media.into_iter().map(Arc::new));
        }
        Ok(Some(read))
    }

    /// An image by itself, or the code of what is wrong with it.
    pub(super) fn alone(&self, image: &Named) -> Result<Medium, &'static str> {
        match image.url() {
            Some(_) => Err("at a URL"),
            None => self.medium(image.kind, &image.reference).map_err(|(code, _)| code),
        }
    }

    fn medium(&self, kind: MediaKind, reference: &Reference) -> Result<Medium, Fault> {
        match reference {
            Reference::Base64(text) => of_bytes(kind, decoded(text)?),
            Reference::Path(text) => self.of_location(kind, text),
            Reference::Text(text) => match bare_base64(kind, text) {
                Some(bytes) => of_bytes(kind, bytes),
                None => self.of_location(kind, text),
            },
            Reference::Document(_) => Err((code::MEDIA_UNSUPPORTED, "no image".to_owned())),
        }
    }

    /// A medium that came with the row, or of a `data:` URI, a URL or a path.
    fn of_location(&self, kind: MediaKind, text: &str) -> Result<Medium, Fault> {
        if let Some((_, member)) = self.members.iter().find(|(name, _)| name == text) {
            let bytes = match member {
                Member::Made(medium) => return Ok(Medium::clone(medium)),
                Member::Bytes(bytes) => Arc::clone(bytes),
            };
            let medium = Medium::new(kind, Held(bytes), Limits::default());
            return medium
                .map_err(|error| (error.code(), format!("member {}: {error}", quoted(text))));
        }
        let (noun, example) = (noun(kind), data_example(kind));
        let (scheme, rest) = match scheme(text) {
            None if text.len() > MAX_PATH => {
                let what = format!(
                    "neither a path nor base64 of {noun}; help: give the path of a file, or \
                     {example}"
                );
                return Err((code::MEDIA_FORMAT, what));
            }
            None => return self.of_file(kind, (text, text)),
            Some(found) => found,
        };
        match scheme.to_ascii_lowercase().as_str() {
            "data" => of_data_uri(kind, rest),
            "file" => {
                let path = rest.strip_prefix("//").unwrap_or(rest);
                let path = match path.strip_prefix("localhost/") {
                    Some(_) => &path["localhost".len()..],
                    None => path,
                };
                let decoded = percent_decoded(path).ok_or_else(|| {
                    let what = format!("{} is no file URL", quoted(text));
                    (code::MEDIA_FORMAT, what)
                })?;
                self.of_file(kind, (text, &decoded))
            }
            "http" | "https" => self.of_url(kind, text),
            scheme => Err((
                code::MEDIA_FORBIDDEN,
                format!(
                    "{}: {} of {scheme}: are not read; help: give the path of a file, or {example}",
                    quoted(text),
                    nouns(kind)
                ),
            )),
        }
    }

    /// Who asks for what is at a URL.
    fn asking(&self, kind: MediaKind, url: &str) -> Result<&Ahead, Fault> {
        self.ahead.as_ref().ok_or_else(|| {
            let what = format!(
                "{}: {} of URLs are not read; help: --allow-media-urls fetches them, or give the \
                 path of a file",
                quoted(url),
                nouns(kind)
            );
            (code::MEDIA_FORBIDDEN, what)
        })
    }

    /// The bytes at a URL.
    fn fetched_bytes(&self, url: &str) -> Result<Arc<Vec<u8>>, Fault> {
        self.asking(MediaKind::Image, url)?.take(url)
    }

    /// A medium at a URL.
    fn of_url(&self, kind: MediaKind, url: &str) -> Result<Medium, Fault> {
        let ahead = self.asking(kind, url)?;
        let is_it = |image: &&FetchedImage| image.is_at(url) && image.kind() == kind;
        let medium = match self.recalled.iter().find(is_it) {
            Some(image) => image.medium(url, ahead.fetcher()),
            None => Medium::new(kind, Held(ahead.take(url)?), Limits::default())
                .map_err(|error| (error.code(), format!("{}: {error}", quoted(url))))?,
        };
        self.fetched.borrow_mut().push(FetchedImage::of(url, &medium));
        Ok(medium)
    }

    /// A medium of a file. `written` is what the row calls it.
    fn of_file(&self, kind: MediaKind, (written, path): (&str, &str)) -> Result<Medium, Fault> {
        let medium = self.folders.file(Path::new(path)).and_then(|file| {
            let medium = Medium::new(kind, file.clone(), Limits::default());
            if medium.is_err()
                && let Some(error) = file.refusal()
            {
                let error = io::Error::other(format!("{}: {error}", quoted(written)));
                self.refused.replace(Some(error));
            }
            medium
        });
        medium.map_err(|error| (error.code(), format!("{}: {error}", quoted(written))))
    }
}

/// What is wrong with a row of more media of a kind than it may have.
fn too_many(kind: MediaKind, count: usize, most: usize) -> Option<String> {
    let (nouns, name) = (nouns(kind), kind.name());
    (count > most).then(|| {
        format!(
            "the row has {count} {nouns}, and {most} are the most; \
             help: --limit-mm-per-prompt '{{\"{name}\": {count}}}' allows them"
        )
    })
}

/// Bytes of a member of an archive, or of a URL. Others may have them too.
#[derive(Debug)]
struct Held(Arc<Vec<u8>>);

impl Encoded for Held {
    fn read(&self, limits: &Limits) -> Result<Cow<'_, [u8]>, MediaError> {
        self.0.read(limits)
    }

    fn num_bytes_held(&self) -> usize {
        self.0.len()
    }
}

/// Whether a text is a URL that may be asked for.
fn is_web(text: &str) -> bool {
    scheme(text).is_some_and(|(scheme, _)| {
        ["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known))
    })
}

/// The scheme of a URL, and what is behind its colon. A path may have a colon too, so of others
/// than these two `//` follows.
fn scheme(text: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = text.split_once(':')?;
    let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    let is_known = ["data", "file"].iter().any(|known| scheme.eq_ignore_ascii_case(known));
    (is_scheme && (is_known || rest.starts_with("//"))).then_some((scheme, rest))
}

/// A medium of a kind, in words.
fn noun(kind: MediaKind) -> &'static str {
    match kind {
        MediaKind::Image => "an image",
        MediaKind::Sound => "a recording",
    }
}

/// Several of them.
pub(in crate::input) fn nouns(kind: MediaKind) -> &'static str {
    match kind {
        MediaKind::Image => "images",
        MediaKind::Sound => "recordings",
    }
}

/// How a `data:` URI of a kind begins.
fn data_example(kind: MediaKind) -> &'static str {
    match kind {
        MediaKind::Image => "data:image/png;base64,...",
        MediaKind::Sound => "data:audio/wav;base64,...",
    }
}

/// What is behind the colon of a `data:` URI.
fn of_data_uri(kind: MediaKind, rest: &str) -> Result<Medium, Fault> {
    let wrong = |what: &str| {
        let what = format!("{what}; help: write {}", data_example(kind));
        (code::MEDIA_FORMAT, what)
    };
    let uri = DataUri::parse(rest).map_err(wrong)?;
    let media_type = &uri.media_type;
    if media_type.split('/').next() != Some(kind.name()) || !media_type.contains('/') {
        let noun = noun(kind);
        let noun = noun.rsplit(' ').next().unwrap_or_default();
        return Err(wrong(&format!(
            "the data: URI has the type {}, which is no {noun}",
            quoted(media_type)
        )));
    }
    of_bytes(kind, decoded(uri.base64().map_err(wrong)?)?)
}

fn of_bytes(kind: MediaKind, bytes: Vec<u8>) -> Result<Medium, Fault> {
    Medium::new(kind, bytes, Limits::default())
        .map_err(|error: MediaError| (error.code(), error.to_string()))
}

/// The bytes of a text that can be nothing but base64 of a medium.
fn bare_base64(kind: MediaKind, text: &str) -> Option<Vec<u8>> {
    // The first bytes tell paths from it without a look at the rest.
    let start = base64::decode(text.get(..MIN_BARE_BASE64)?)?;
    let begins = match kind {
        MediaKind::Image => Format::of(&start).is_ok(),
        MediaKind::Sound => SoundFormat::begins(&start),
    };
    begins.then(|| base64::decode(text)).flatten()
}

/// A URL's path with `%20` and the like as what they stand for.
fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        if *byte != b'%' {
            bytes.push(*byte);
            continue;
        }
        let (digits, after) = rest.split_at_checked(2)?;
        let digits = std::str::from_utf8(digits).ok()?;
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = after;
    }
    String::from_utf8(bytes).ok()
}
