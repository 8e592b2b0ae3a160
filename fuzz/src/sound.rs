//! Recordings of every format: what a header says is what is decoded, and clips are all of it,
//! or the recording is an error.

use std::io::Cursor;

use vllm_batch::engine::media::{Clips, Limits, decode_sound, probe_sound};

const MAX_INPUT: usize = 64 << 10;

/// Small, so that an input costs little time whatever it says.
const LIMITS: Limits =
    Limits { max_bytes: MAX_INPUT as u64, max_pixels: 1, max_side: 1, max_seconds: 2 };

/// Clips that are made of what is no recording.
const MAX_CLIPS: usize = 4;

/// The bytes are a file.
pub fn check(data: &[u8]) {
    if data.len() > MAX_INPUT {
        return;
    }
    let (header, samples) = (probe_sound(data, &LIMITS), decode_sound(data, &LIMITS));
    match (header, samples) {
        (Ok(header), Ok(samples)) => {
            assert_eq!(header.num_samples, samples.values().len() as u64);
            assert_eq!(header.sample_rate, samples.rate());
            assert!(header.num_samples <= 2 * u64::from(header.sample_rate));
            assert!(samples.values().iter().all(|sample| sample.is_finite()));
            assert_eq!(decode_sound(data, &LIMITS), Ok(samples.clone()));
            let clips = Clips::open(Cursor::new(data.to_vec()), 1).expect("a recording");
            let clips = clips.map(|clip| clip.expect("a clip").samples.values().to_vec());
            assert_eq!(clips.collect::<Vec<_>>().concat(), samples.values());
            let resampled = samples.at_rate(16_000);
            assert_eq!(resampled.values().len() as u64, header.num_samples_at(16_000));
        }
        (Err(error), samples) => {
            assert_eq!(samples, Err(error));
            if let Ok(clips) = Clips::open(Cursor::new(data.to_vec()), 1) {
                clips.take(MAX_CLIPS).for_each(drop);
            }
        }
        (Ok(_), Err(error)) => assert!(error.code().starts_with("media_"), "{error}"),
    }
}
