//! What a file is by its name.

use vllm_batch_media::MediaKind;

/// Extensions of media: what is in a file of such a name is one of the kind, or an error row.
const EXTENSIONS: &[(MediaKind, &[&str])] = &[
    (
        MediaKind::Image,
        &["avif", "bmp", "gif", "heic", "heif", "jpeg", "jpg", "png", "tif", "tiff", "webp"],
    ),
    (MediaKind::Sound, SOUNDS),
];

/// Those of recordings.
pub(in crate::input) const SOUNDS: &[&str] = &[
    "aac", "aif", "aifc", "aiff", "amr", "flac", "m4a", "mp3", "oga", "ogg", "opus", "wav", "wave",
    "wma",
];

/// The kind of a medium whose name ends so, or is such an extension itself.
pub(in crate::input) fn kind_of_name(name: &str) -> Option<MediaKind> {
    let extension = name.rsplit('.').next().unwrap_or_default();
    let has = |all: &[&str]| all.iter().any(|known| extension.eq_ignore_ascii_case(known));
    EXTENSIONS.iter().find(|(_, all)| has(all)).map(|(kind, _)| *kind)
}
