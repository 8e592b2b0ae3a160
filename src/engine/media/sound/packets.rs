//! Packets of a file, and their samples: symphonia, and what it is told.

use std::io::{ErrorKind, Seek};

use symphonia::core::codecs::audio::well_known as codecs;
use symphonia::core::codecs::audio::{
    AudioCodecId, AudioCodecParameters, AudioDecoder, AudioDecoderOptions,
};
use symphonia::core::errors::Error;
use symphonia::core::formats::{FormatOptions, FormatReader, TrackType};
use symphonia::core::io::{MediaSource, MediaSourceStream, ReadOnlySource};
use symphonia::core::packet::Packet;
use symphonia::default::formats::{
    AdtsReader, AiffReader, FlacReader, IsoMp4Reader, MpaReader, OggReader, WavReader,
};

use super::format::SoundFormat;
use super::source::Source;
use super::{MAX_CHANNELS, RATES, damaged, mp4, unsupported, wav};
use crate::error::MediaError;

/// Samples of a packet of AAC.
const AAC_SAMPLES: u64 = 1024;

/// Samples by which the length that an MP3 file says may be too long: encoders have counted the
/// packet that says it, and more.
const MP3_SLACK: u64 = 2 * 1152;

/// Kinds of sound that are known by name, and not read.
const UNREAD: &[(AudioCodecId, &str)] = &[
    (codecs::CODEC_ID_AC3, "AC-3"),
    (codecs::CODEC_ID_ADPCM_G722, "ADPCM"),
    (codecs::CODEC_ID_ADPCM_IMA_QT, "ADPCM"),
    (codecs::CODEC_ID_ADPCM_IMA_WAV, "ADPCM"),
    (codecs::CODEC_ID_ADPCM_MS, "ADPCM"),
    (codecs::CODEC_ID_EAC3, "E-AC-3"),
    (codecs::CODEC_ID_MP1, "MPEG audio of layer 1"),
    (codecs::CODEC_ID_MP2, "MPEG audio of layer 2"),
    (codecs::CODEC_ID_OPUS, "Opus"),
    (codecs::CODEC_ID_SPEEX, "Speex"),
];

/// The packets of the first recording of a file.
pub(super) struct Packets<'a> {
    format: SoundFormat,
    reader: Box<dyn FormatReader + 'a>,
    track: u32,
    params: AudioCodecParameters,
    rate: u32,
    num_channels: usize,
    /// Samples of each channel, as the file says. None: it does not.
    said: Option<u64>,
    counted: u64,
    /// Packets that may still come: each has a byte of the file.
    num_left: u64,
    /// Samples in front of the recording, which decoders do not take away.
    priming: u64,
}

/// What makes samples of packets.
pub(super) struct Decoder {
    format: SoundFormat,
    decoder: Box<dyn AudioDecoder>,
    rate: u32,
    channels: Vec<Vec<f32>>,
}

impl<'a> Packets<'a> {
    /// Reads what is in front of the first packet.
    pub(super) fn new(format: SoundFormat, mut source: Source<'a>) -> Result<Self, MediaError> {
        let fault = |error| fault(format, &error);
        let num_bytes = source.len();
        let tables = match format {
            SoundFormat::Mp4 => {
                mp4::tables(&mut source).map_err(|error| MediaError::unreadable(&error))?
            }
            _ => Some(Vec::new()),
        };
        let tables = tables
            .filter(|tables| mp4::is_sensible(tables))
            .ok_or_else(|| unsupported(format, "tables of more packets than a recording has"))?;
        let reader = reader(format, source).map_err(fault)?;
        let nothing = || unsupported(format, "no sound of a known kind");
        let track = reader.first_track(TrackType::Audio).ok_or_else(nothing)?;
        let params = track.codec_params.as_ref().and_then(|params| params.audio());
        let params = params.ok_or_else(nothing)?.clone();
        let (track, said) = (track.id, track.num_frames);
        if let Some((_, name)) = UNREAD.iter().find(|(codec, _)| *codec == params.codec) {
            return Err(unsupported(format, format_args!("sound in {name}")));
        }
        let decoder = made(&params).map_err(fault)?;
        let found = decoder.codec_params();
        let rate = found.sample_rate.or(params.sample_rate).unwrap_or_default();
        let channels = found.channels.as_ref().or(params.channels.as_ref());
        let num_channels = channels.map_or(0, |channels| channels.count());
        if !RATES.contains(&rate) {
            return Err(unsupported(format, format_args!("{rate} samples a second")));
        }
        if !(1..=MAX_CHANNELS).contains(&num_channels) {
            return Err(unsupported(format, format_args!("{num_channels} channels")));
        }
        let priming = mp4::priming(&tables, rate);
        let (counted, num_left) = (0, num_bytes + 1);
        Ok(Packets {
            format,
            reader,
            track,
            params,
            rate,
            num_channels,
            said,
            counted,
            num_left,
            priming,
        })
    }

    pub(super) fn rate(&self) -> u32 {
        self.rate
    }

    pub(super) fn num_channels(&self) -> usize {
        self.num_channels
    }

    /// Samples of each channel in the packets that were counted.
    pub(super) fn num_samples(&self) -> u64 {
        self.counted.saturating_sub(self.priming)
    }

    /// Samples that are decoded in front of the recording.
    pub(super) fn priming(&self) -> u64 {
        self.priming
    }

    /// The next packet of the recording.
    pub(super) fn next(&mut self) -> Result<Option<Packet>, MediaError> {
        loop {
            self.num_left = self.num_left.checked_sub(1).ok_or_else(|| {
                damaged(self.format, "it says that it has more packets than bytes")
            })?;
            match self.reader.next_packet() {
                Ok(Some(packet)) if packet.track_id == self.track => return Ok(Some(packet)),
                Ok(Some(_)) => {}
                Ok(None) => return self.check_end().map(|()| None),
                Err(error) => return Err(fault(self.format, &error)),
            }
        }
    }

    /// Counts the samples of a packet.
    pub(super) fn count(&mut self, packet: &Packet) {
        let count = packet.dur.get();
        self.counted += match self.params.codec {
            codecs::CODEC_ID_AAC => AAC_SAMPLES,
            // Its duration is that of all that is decoded.
            codecs::CODEC_ID_MP3 => {
                count.saturating_sub(packet.trim_start.get().saturating_add(packet.trim_end.get()))
            }
            _ => match self.frame_len() {
                Some(frame_len) => count.min(packet.data.len() as u64 / frame_len),
                None => count,
            },
        };
    }

    /// Bytes of a sample of all channels, of formats that have them one behind the other.
    fn frame_len(&self) -> Option<u64> {
        let bits = self.params.bits_per_coded_sample.or(self.params.bits_per_sample)?;
        let is_plain = matches!(self.format, SoundFormat::Wav | SoundFormat::Aiff);
        (is_plain && bits >= 8).then(|| u64::from(bits / 8) * self.num_channels as u64)
    }

    /// Whether the file has what it says that it has.
    fn check_end(&self) -> Result<(), MediaError> {
        let slack = if self.format == SoundFormat::Mp3 { MP3_SLACK } else { 0 };
        let is_exact = !matches!(self.format, SoundFormat::Aac | SoundFormat::Mp4);
        match self.said {
            Some(said) if is_exact && self.counted + slack < said => {
                let counted = self.counted;
                let what = format!("it is cut: it says {said} samples, and has {counted}");
                Err(damaged(self.format, what))
            }
            _ => Ok(()),
        }
    }

    /// A decoder of the packets from the first on.
    pub(super) fn decoder(&self) -> Result<Decoder, MediaError> {
        let decoder = made(&self.params).map_err(|error| fault(self.format, &error))?;
        let channels = vec![Vec::new(); self.num_channels];
        Ok(Decoder { format: self.format, decoder, rate: self.rate, channels })
    }
}

impl Decoder {
    /// Appends the samples of a packet: the mean of its channels.
    pub(super) fn push(
        &mut self,
        packet: &Packet,
        values: &mut Vec<f32>,
    ) -> Result<(), MediaError> {
        let format = self.format;
        let decoded = self.decoder.decode(packet).map_err(|error| fault(format, &error))?;
        if decoded.frames() == 0 {
            return Ok(());
        }
        let num_channels = self.channels.len();
        if decoded.spec().rate() != self.rate || decoded.num_planes() != num_channels {
            return Err(unsupported(format, "another rate or other channels in its middle"));
        }
        decoded.copy_to_vecs_planar::<f32>(&mut self.channels);
        let (first, others) = self.channels.split_first().expect("a channel");
        let start = values.len();
        values.extend_from_slice(first);
        if others.is_empty() {
            return Ok(());
        }
        let mixed = &mut values[start..];
        for channel in others {
            for (sum, sample) in mixed.iter_mut().zip(channel) {
                *sum += sample;
            }
        }
        mixed.iter_mut().for_each(|sum| *sum /= num_channels as f32);
        Ok(())
    }
}

fn reader<'a>(
    format: SoundFormat,
    mut source: Source<'a>,
) -> Result<Box<dyn FormatReader + 'a>, Error> {
    if format == SoundFormat::Wav {
        wav::correct(&mut source)?;
    }
    source.rewind()?;
    let source: Box<dyn MediaSource + 'a> = match format {
        // Of what can be sought in their readers guess a length, and end there.
        SoundFormat::Mp3 | SoundFormat::Aac => Box::new(ReadOnlySource::new(source)),
        _ => Box::new(source),
    };
    let stream = MediaSourceStream::new(source, Default::default());
    let options = FormatOptions::default();
    Ok(match format {
        SoundFormat::Wav => Box::new(WavReader::try_new(stream, options)?),
        SoundFormat::Flac => Box::new(FlacReader::try_new(stream, options)?),
        SoundFormat::Mp3 => Box::new(MpaReader::try_new(stream, options)?),
        SoundFormat::Ogg => Box::new(OggReader::try_new(stream, options)?),
        SoundFormat::Aac => Box::new(AdtsReader::try_new(stream, options)?),
        SoundFormat::Mp4 => Box::new(IsoMp4Reader::try_new(stream, options)?),
        SoundFormat::Aiff => Box::new(AiffReader::try_new(stream, options)?),
    })
}

fn made(params: &AudioCodecParameters) -> Result<Box<dyn AudioDecoder>, Error> {
    symphonia::default::get_codecs().make_audio_decoder(params, &AudioDecoderOptions::default())
}

fn fault(format: SoundFormat, error: &Error) -> MediaError {
    match error {
        Error::Unsupported(what) => unsupported(format, what),
        Error::ResetRequired => unsupported(format, "several recordings one behind the other"),
        Error::IoError(error) if error.kind() == ErrorKind::UnexpectedEof => {
            damaged(format, "it is cut")
        }
        Error::IoError(error) if error.raw_os_error().is_some() => MediaError::unreadable(error),
        error => damaged(format, error),
    }
}
