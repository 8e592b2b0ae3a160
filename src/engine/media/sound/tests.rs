//! Recordings of every format, and features against transformers.

use serde_json::{Value, json};

use super::*;
use crate::goldens::{number, sounds};
use std::f64::consts::PI;
use vllm_batch_base::layers::SoundChunks;

/// A WAV of 16-bit samples, channel after channel within a frame.
fn wav_of(rate: u32, num_channels: u16, samples: &[i16]) -> Vec<u8> {
    let num_bytes = samples.len() as u32 * 2;
    let mut bytes = b"RIFF".to_vec();
    bytes.extend((36 + num_bytes).to_le_bytes());
    bytes.extend(b"WAVEfmt \x10\0\0\0\x01\0");
    bytes.extend(num_channels.to_le_bytes());
    bytes.extend(rate.to_le_bytes());
    bytes.extend((rate * u32::from(num_channels) * 2).to_le_bytes());
    bytes.extend((num_channels * 2).to_le_bytes());
    bytes.extend(b"\x10\0data");
    bytes.extend(num_bytes.to_le_bytes());
    bytes.extend(samples.iter().flat_map(|sample| sample.to_le_bytes()));
    bytes
}

fn decoded(bytes: &[u8]) -> Samples {
    let header = probe(bytes, &Limits::default()).expect("a recording");
    let samples = decode(bytes, &Limits::default()).expect("samples");
    assert_eq!(header.num_samples, samples.values().len() as u64);
    assert_eq!(header.sample_rate, samples.rate());
    samples
}

#[test]
fn channels_become_their_mean() {
    let samples = decoded(&wav_of(8000, 2, &[16384, 0, -32768, -32768, 3, 4]));
    assert_eq!(samples.values(), [0.25, -1.0, 3.5 / 32768.0]);
    assert_eq!(samples.rate(), 8000);
}

#[test]
fn limits_are_asked_before_samples_are_made() {
    let bytes = wav_of(1000, 1, &[0; 2001]);
    let limits = Limits { max_seconds: 2, ..Limits::default() };
    assert_eq!(probe(&bytes, &limits).unwrap_err().code(), "media_too_large");
    assert_eq!(decode(&bytes, &limits).unwrap_err().code(), "media_too_large");
    let fits = wav_of(1000, 1, &[0; 2000]);
    assert_eq!(probe(&fits, &limits).unwrap().num_samples, 2000);
}

#[test]
fn a_cut_file_and_an_empty_one_are_damaged() {
    let bytes = wav_of(8000, 1, &[7; 3000]);
    for len in [45, 100, 3000, bytes.len() - 1] {
        let error = probe(&bytes[..len], &Limits::default()).unwrap_err();
        assert_eq!(error.code(), "media_decode", "{len}: {error}");
    }
    for bytes in [wav_of(8000, 1, &[]), wav_of(8000, 0, &[1, 2]), Vec::new(), b"hello".to_vec()] {
        let error = probe(&bytes, &Limits::default()).unwrap_err();
        assert_eq!(error.code(), "media_decode", "{error}");
    }
    for rate in [0, 999, 192_001, u32::MAX / 2] {
        let mut bytes = bytes.clone();
        bytes[24..28].copy_from_slice(&rate.to_le_bytes());
        let error = probe(&bytes, &Limits::default()).unwrap_err();
        assert_eq!(error.code(), "media_unsupported", "{rate}: {error}");
    }
}

/// The tones of `testdata/generate_sound.py`.
fn tones(rate: u32, count: usize, seed: u32) -> Samples {
    let mut state = seed;
    let tone = |index: usize| {
        let time = index as f64 / f64::from(rate);
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let phase = 2.0 * PI * time * (200.0 + 300.0 * f64::from(seed) + 900.0 * time);
        let loud = 0.5 + 0.5 * (2.0 * PI * 3.0 * time).sin();
        let noise = f64::from(state >> 16) / 65536.0 - 0.5;
        (loud * (0.4 * phase.sin() + 0.2 * (3.0 * phase).sin()) + 0.05 * noise) as f32
    };
    Samples::new(rate, (0..count).map(tone).collect())
}

/// The largest difference of values from those that a line has.
fn difference<'a>(values: impl IntoIterator<Item = &'a f32>, line: &Value) -> f64 {
    let expected = line.as_array().expect("values");
    let mut values = values.into_iter();
    let differences = expected.iter().map(|expected| {
        let value = *values.next().expect("as many");
        (f64::from(value) - expected.as_f64().expect("a number")).abs()
    });
    let worst = differences.fold(0.0, f64::max);
    assert_eq!(values.next(), None);
    worst
}

#[test]
fn recordings_are_those_of_libsndfile_and_ffmpeg() {
    let mut faults = Vec::new();
    for line in sounds::lines("decoded.jsonl") {
        let name = line["file"].as_str().expect("a name");
        let bytes = sounds::file(name);
        let header = match probe(&bytes, &Limits::default()) {
            Ok(header) => header,
            Err(error) => {
                faults.push(format!("{name}: {error}"));
                continue;
            }
        };
        let found = [header.sample_rate as usize, header.num_channels as usize];
        let wanted = [number(&line["rate"]), number(&line["channels"])];
        let samples = match decode(&bytes, &Limits::default()) {
            Ok(samples) => samples,
            Err(error) => {
                faults.push(format!("{name}: {error}"));
                continue;
            }
        };
        assert_eq!(samples.values().len() as u64, header.num_samples, "{name}");
        if found != wanted || header.num_samples as usize != number(&line["samples"]) {
            faults.push(format!("{name}: {header:?}, {}", line["samples"]));
            continue;
        }
        let worst =
            difference(samples.values().iter().step_by(number(&line["step"])), &line["mean"]);
        let is_lossless = name.ends_with("wav") || name.contains("flac") || name.contains("aif");
        let most = if is_lossless { 2e-7 } else { 1e-4 };
        if worst > most {
            faults.push(format!("{name}: {worst}"));
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn what_is_known_and_not_read_is_refused_by_name() {
    for (name, what) in [("stereo_ima_adpcm.wav", "sound in ADPCM"), ("mono.opus", "is Opus")] {
        let error = probe(&sounds::file(name), &Limits::default()).unwrap_err();
        assert_eq!(error.code(), "media_unsupported", "{error}");
        assert!(error.to_string().contains(what), "{error}");
    }
    for (bytes, what) in [
        (&b"\x1a\x45\xdf\xa3\x01"[..], "Matroska or WebM"),
        (b"#!AMR\n", "AMR"),
        (b"RF64\xff\xff\xff\xffWAVE", "RF64"),
        (b"OggS\0\x02\0\0\0\0\0\0\0\0abcdefghijkl\x01\x50Speex   1.2", "Speex"),
    ] {
        let error = probe(bytes, &Limits::default()).unwrap_err();
        assert_eq!(error.code(), "media_unsupported", "{error}");
        assert!(error.to_string().contains(what), "{error}");
    }
}

/// The reader takes a step for each, whatever the file holds.
#[test]
fn tables_that_say_more_than_a_file_can_hold_are_refused() {
    let mut bytes = sounds::file("fragments.mp4");
    let at = bytes.windows(4).position(|four| four == b"trun").expect("a run");
    bytes[at + 8..at + 12].copy_from_slice(&u32::MAX.to_be_bytes());
    let error = probe(&bytes, &Limits::default()).unwrap_err();
    assert_eq!(error.code(), "media_unsupported", "{error}");
    let mut bytes = sounds::file("mono.m4a");
    let at = bytes.windows(4).position(|four| four == b"stsz").expect("sizes");
    bytes[at + 12..at + 16].copy_from_slice(&u32::MAX.to_be_bytes());
    assert!(probe(&bytes, &Limits::default()).is_err());
}

#[test]
fn cut_files_of_every_format_are_faults_or_shorter() {
    for line in sounds::lines("decoded.jsonl") {
        let bytes = sounds::file(line["file"].as_str().expect("a name"));
        for len in (0..bytes.len()).step_by(97) {
            let cut = &bytes[..len];
            let (header, samples) =
                (probe(cut, &Limits::default()), decode(cut, &Limits::default()));
            match (header, samples) {
                (Ok(header), Ok(samples)) => {
                    assert_eq!(header.num_samples, samples.values().len() as u64);
                    assert!(header.num_samples <= number(&line["samples"]) as u64, "{line} {len}");
                }
                (Err(error), samples) => assert_eq!(samples, Err(error)),
                (Ok(_), Err(error)) => assert_eq!(error.code(), "media_decode", "{error}"),
            }
        }
    }
}

#[test]
fn other_rates_are_those_of_torchaudio() {
    for line in sounds::lines("resampled.jsonl") {
        let (rate, to) = (number(&line["rate"]) as u32, number(&line["to"]) as u32);
        let tone = tones(rate, number(&line["count"]), 1);
        let header = SoundHeader {
            format: SoundFormat::Wav,
            sample_rate: rate,
            num_channels: 1,
            num_samples: tone.values().len() as u64,
        };
        let samples = tone.at_rate(to);
        assert_eq!(samples.values().len(), number(&line["samples"]), "{line}");
        assert_eq!(header.num_samples_at(to), samples.values().len() as u64);
        let values = samples.values().iter().step_by(number(&line["step"]));
        let worst = difference(values, &line["values"]);
        assert!(worst < 3e-7, "{rate} {to}: {worst}");
    }
}

fn whisper(num_mels: usize) -> Value {
    json!({
        "feature_extractor_type": "WhisperFeatureExtractor", "feature_size": num_mels,
        "sampling_rate": 16000, "hop_length": 160, "n_fft": 400, "chunk_length": 30,
        "n_samples": 480_000, "nb_max_frames": 3000, "padding_value": 0.0, "padding_side": "right",
        "dither": 0.0, "return_attention_mask": false, "processor_class": "WhisperProcessor",
    })
}

#[test]
fn features_are_those_of_transformers() {
    let mut worst = 0.0f64;
    for line in sounds::lines("features.jsonl") {
        let processor =
            SoundProcessor::from_config(&whisper(number(&line["mels"])), SoundChunks::One).unwrap();
        let tone = tones(16_000, number(&line["count"]), number(&line["seed"]) as u32);
        let features = processor.features(&tone).unwrap();
        let num_mels = number(&line["mels"]);
        assert_eq!((features.num_frames, features.num_mels), (3000, num_mels));
        let frames = line["frames"].as_array().unwrap().iter().map(number);
        for (frame, expected) in frames.zip(line["values"].as_array().unwrap()) {
            let values = &features.values[frame * num_mels..][..num_mels];
            worst = worst.max(difference(values, expected));
        }
        let summed = &features.values[..number(&line["summed"]) * num_mels];
        let sum: f64 = summed.iter().map(|value| f64::from(*value)).sum();
        assert!((sum - line["sum"].as_f64().unwrap()).abs() < 0.01, "{sum} {line}");
    }
    assert!(worst < 1e-5, "{worst}");
}

#[test]
fn a_clip_that_is_too_long_is_refused() {
    let processor = SoundProcessor::from_config(&whisper(80), SoundChunks::One).unwrap();
    assert_eq!(
        (processor.num_mels(), processor.num_frames(), processor.rate()),
        (80, 3000, 16_000)
    );
    let long = Samples::new(16_000, vec![0.0; 480_001]);
    let error = processor.features(&long).unwrap_err();
    assert_eq!(error.code(), "media_too_large");
    assert!(error.to_string().contains("help: cut it into pieces"), "{error}");
    assert!(processor.features(&Samples::new(8_000, vec![0.0; 240_000])).is_ok());
}

#[test]
fn chunks_are_cut_from_features_or_from_samples() {
    let of = |chunks| SoundProcessor::from_config(&whisper(80), chunks).unwrap();
    let long = tones(16_000, 600_100, 3);
    let [joined, apart] =
        [SoundChunks::Joined, SoundChunks::Apart].map(|chunks| of(chunks).features(&long).unwrap());
    for features in [&joined, &apart] {
        assert_eq!((features.num_frames, features.num_heard), (6000, 3751));
    }
    let piece = |range: std::ops::Range<usize>| Samples::new(16_000, long.values()[range].to_vec());
    let pieces = [0..480_000, 480_000..600_100];
    let alone = |range| of(SoundChunks::One).features(&piece(range)).unwrap().values;
    let alone = pieces.map(alone).concat();
    assert_eq!(apart.values, alone);
    // The frame before the cut and the one behind it know of each other.
    let differ = |frame: usize| joined.values[frame * 80..][..80] != alone[frame * 80..][..80];
    assert!(differ(2999) && differ(3000) && !differ(2990) && !differ(3010));
}

#[test]
fn frames_behind_a_recording_are_zeros_where_none_are_heard() {
    let of = |chunks| SoundProcessor::from_config(&whisper(80), chunks).unwrap();
    let short = tones(16_000, 8_010, 3);
    let whole = of(SoundChunks::One).features(&short).unwrap();
    let trimmed = of(SoundChunks::Trimmed(20)).features(&short).unwrap();
    assert_eq!((trimmed.num_frames, trimmed.num_heard), (60, 51));
    let (heard, zeros) = trimmed.values.split_at(51 * 80);
    assert!(heard == &whole.values[..51 * 80] && zeros.iter().all(|value| *value == 0.0));
    let exact = |min_samples| of(SoundChunks::Exact { num_frames: 20, min_samples });
    let features = exact(0).features(&short).unwrap();
    assert_eq!((features.num_frames, features.num_heard), (60, 50));
    // The end is reflected, so the last frames are others.
    let same = |frame: usize| features.values[frame * 80..][..80] == heard[frame * 80..][..80];
    assert!(same(0) && same(48) && !same(49));
    assert!(features.values[50 * 80..].iter().all(|value| *value == 0.0));
    let nothing = tones(16_000, 200, 3);
    let error = exact(0).features(&nothing).unwrap_err();
    assert!(error.to_string().contains("200 samples, which are no frame"), "{error}");
    assert_eq!(exact(8000).features(&nothing).unwrap().num_heard, 50);
}

#[test]
fn a_recording_whose_chunks_are_read_apart_has_a_longest_length() {
    let mut config = whisper(80);
    config["max_audio_len"] = json!(60);
    let processor = SoundProcessor::from_config(&config, SoundChunks::Apart).unwrap();
    assert!(processor.check(60 * 16_000).is_ok());
    let error = processor.check(60 * 16_000 + 1).unwrap_err();
    assert!(error.to_string().contains("the model hears 60"), "{error}");
    let joined = SoundProcessor::from_config(&whisper(80), SoundChunks::Joined).unwrap();
    assert!(joined.check(u64::MAX).is_ok());
    let error = SoundProcessor::from_config(&config, SoundChunks::One).unwrap_err();
    assert!(error.to_string().contains("`max_audio_len` is not read"), "{error}");
}

#[test]
fn no_key_of_a_configuration_goes_unread() {
    let refused = |key: &str, value: Value| {
        let mut config = whisper(80);
        config[key] = value;
        SoundProcessor::from_config(&config, SoundChunks::One).unwrap_err().to_string()
    };
    for (key, value, what) in [
        ("feature_extractor_type", json!("SeamlessM4TFeatureExtractor"), "is not known"),
        ("dither", json!(0.001), "`dither` is not 0"),
        ("do_normalize", json!(true), "`do_normalize` is true"),
        ("padding_side", json!("left"), "`padding_side` is left"),
        ("n_samples", json!(480_001), "480000 follows"),
        ("nb_max_frames", json!(1500), "3000 follows"),
        ("feature_size", json!(100_000), "not sensible"),
        ("hop_length", json!(401), "not sensible"),
        ("win_length", json!(400), "`win_length` is not read"),
    ] {
        let error = refused(key, value);
        assert!(error.contains(what), "{key}: {error}");
    }
}
