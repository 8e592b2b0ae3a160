//! Recordings of every format, and features against transformers.

use super::*;

/// A WAV of 16-bit samples, channel after channel within a frame.
fn wav(rate: u32, num_channels: u16, samples: &[i16]) -> Vec<u8> {
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
    let samples = decoded(&wav(8000, 2, &[16384, 0, -32768, -32768, 3, 4]));
    assert_eq!(samples.values(), [0.25, -1.0, 3.5 / 32768.0]);
    assert_eq!(samples.rate(), 8000);
}

#[test]
fn limits_are_asked_before_samples_are_made() {
    let bytes = wav(1000, 1, &[0; 2001]);
    let limits = Limits { max_seconds: 2, ..Limits::default() };
    assert_eq!(probe(&bytes, &limits).unwrap_err().code(), "media_too_large");
    assert_eq!(decode(&bytes, &limits).unwrap_err().code(), "media_too_large");
    let fits = wav(1000, 1, &[0; 2000]);
    assert_eq!(probe(&fits, &limits).unwrap().num_samples, 2000);
}

#[test]
fn a_cut_file_and_an_empty_one_are_damaged() {
    let bytes = wav(8000, 1, &[7; 3000]);
    for len in [45, 100, 3000, bytes.len() - 1] {
        let error = probe(&bytes[..len], &Limits::default()).unwrap_err();
        assert_eq!(error.code(), "media_decode", "{len}: {error}");
    }
    for bytes in [wav(8000, 1, &[]), wav(8000, 0, &[1, 2]), Vec::new(), b"hello".to_vec()] {
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

#[test]
fn features_have_the_frames_of_a_clip() {
    let config = serde_json::json!({
        "feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 80,
        "sampling_rate": 16000, "hop_length": 160, "n_fft": 400, "chunk_length": 30,
        "n_samples": 480_000, "nb_max_frames": 3000, "padding_value": 0.0,
    });
    let processor = SoundProcessor::from_config(&config).unwrap();
    let samples = decoded(&wav(16_000, 1, &[1000; 1600]));
    let features = processor.features(&samples).unwrap();
    assert_eq!((features.num_frames, features.num_mels), (3000, 80));
    assert_eq!(features.values.len(), 3000 * 80);
    let long = Samples::new(16_000, vec![0.0; 480_001]);
    assert_eq!(processor.features(&long).unwrap_err().code(), "media_too_large");
}
