//! What a file is by its name.

use crate::input::pictures::has_extension;
use vllm_batch_media::MediaKind;

/// Extensions of recordings: what is in a file of such a name is one, or an error row.
const SOUNDS: &[&str] = &[
    "aac", "aif", "aifc", "aiff", "amr", "flac", "m4a", "mp3", "oga", "ogg", "opus", "wav", "wave",
    "wma",
];

/// The kind of a medium whose name ends so, or is such an extension itself.
pub(in crate::input) fn kind_of_name(name: &str) -> Option<MediaKind> {
    if has_extension(name) {
        return Some(MediaKind::Image);
    }
    let extension = name.rsplit('.').next().unwrap_or_default();
    let is_sound = SOUNDS.iter().any(|known| extension.eq_ignore_ascii_case(known));
    is_sound.then_some(MediaKind::Sound)
}
