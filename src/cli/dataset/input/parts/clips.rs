//! Clips of recordings, cut where they are quiet. A file is decoded as its rows are read, and a
//! clip is a recording of its own from then on.

use super::{Opening, Part, PartKind, PartOptions, Parts};
use crate::input::media::SOUNDS;
use vllm_batch_media::{Clip, Clips, Limits, MediaError, MediaKind, Medium};

/// The kind.
pub(super) const KIND: PartKind = PartKind {
    name: "recording",
    extensions: SOUNDS,
    medium: MediaKind::Sound,
    is_asked: |options: &PartOptions| options.max_clip_seconds.is_some(),
    open,
};

fn open(opening: &Opening<'_>) -> Result<Box<dyn Parts>, MediaError> {
    let file = vllm_batch_base::files::open(opening.path);
    let file = file.map_err(|error| MediaError::unreadable(&error))?;
    let max_seconds = opening.options.max_clip_seconds.expect("clips were asked for");
    Ok(Box::new(Clips::open(file, max_seconds)?))
}

impl Parts for Clips {
    fn next_part(&mut self) -> Option<Part> {
        Some(match self.next()? {
            Ok(clip) => part(&clip),
            Err(error) => Part { fields: Vec::new(), medium: Err(error) },
        })
    }
}

fn part(clip: &Clip) -> Part {
    let times = clip.milliseconds();
    let seconds = |milliseconds: u64| {
        let text = format!("{}.{:03}", milliseconds / 1000, milliseconds % 1000);
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    let wav = clip.samples.to_wav();
    let wav = wav.ok_or_else(|| MediaError::TooLarge("the clip has more than 4 GiB".to_owned()));
    Part {
        fields: vec![("start", seconds(times.start)), ("end", seconds(times.end))],
        medium: wav.and_then(|wav| Medium::new(MediaKind::Sound, wav, Limits::default())),
    }
}

#[cfg(test)]
mod tests {
    use vllm_batch_media::Samples;

    use super::*;

    #[test]
    fn a_clip_says_where_it_is() {
        let fields = |first, len| {
            let samples = Samples::new(16_000, vec![0.5; len]);
            let part = part(&Clip { first, samples });
            assert!(part.medium.unwrap().num_bytes_held() > 4 * len);
            part.fields.into_iter().map(|(_, value)| value).collect::<Vec<_>>()
        };
        assert_eq!(fields(0, 480_000), ["0", "30"]);
        assert_eq!(fields(1_600_000, 8_808), ["100", "100.551"], "the nearest thousandth");
        assert_eq!(fields(16 * 60_010, 320), ["60.01", "60.03"]);
    }
}
