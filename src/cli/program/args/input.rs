//! Flags of the input: which file, which shape, which prompt. A row's own fields are not known
//! here.

use std::path::{Path, PathBuf};

use clap::builder::NonEmptyStringValueParser as NonEmpty;

use super::values::{MediaLimits, delimiter, media_limits, positive, positive_u32, seed};
use vllm_batch_dataset::input::own_params::OwnParams;
use vllm_batch_dataset::input::parts::{Drawing, PageNumbers, PageScale, PartOptions};
use vllm_batch_dataset::input::reader::{InputFormat, Layout, TextEncoding};
use vllm_batch_dataset::input::row::{LastAssistant, Likelihoods};
use vllm_batch_dataset::input::sample::Sample;
use vllm_batch_dataset::input::shard::{ShardArg, shard_arg};
use vllm_batch_dataset::terminal::error::CliError;

/// Which part of a dataset of the hub.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Input")]
pub struct SplitArgs {
    /// Inputs are datasets of the hub (OWNER/NAME), and this is the part that is read
    #[arg(long, value_name = "NAME", value_parser = NonEmpty::new(), hide_short_help = true)]
    pub split: Option<String>,
    /// The configuration of the dataset that the split is of [default: its only or default one]
    #[arg(long, value_name = "NAME", value_parser = NonEmpty::new(), requires = "split")]
    #[arg(hide_short_help = true)]
    pub subset: Option<String>,
}

/// Which random part of an input.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
#[command(next_help_heading = "Input")]
pub struct SampleArgs {
    /// Complete only N random rows, in their order
    ///
    /// They are the same for the same input and --sample-seed, and those of a smaller N are among
    /// them. Beside --limit they are of the first rows
    #[arg(long, value_name = "N", value_parser = positive)]
    pub sample: Option<usize>,
    /// Which random rows [default: 0]
    #[arg(long, value_name = "N", value_parser = seed, requires = "sample", hide_short_help = true)]
    pub sample_seed: Option<u64>,
}

impl SampleArgs {
    /// What was typed, if a sample was asked for.
    pub fn sample(self) -> Option<Sample> {
        let seed = self.sample_seed.unwrap_or_default();
        self.sample.map(|rows| Sample { rows: rows as u64, seed })
    }
}

/// Rows in.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Input")]
pub struct InputArgs {
    /// `--prompt`: the only row.
    #[arg(skip)]
    pub prompt: Option<String>,
    /// Files of rows or media, or patterns; nothing: standard input
    #[arg(short = 'i', long, value_name = "FILE", num_args = 1..)]
    pub input: Vec<PathBuf>,
    /// Which part of a dataset.
    #[command(flatten)]
    pub dataset: SplitArgs,
    /// How its bytes become rows.
    #[command(flatten)]
    pub layout: LayoutArgs,
    /// Column or field with the prompt [default: prompt, text, ...]
    ///
    /// Without it, the first of prompt, messages, text, question, ... that is there. A part of a
    /// field is named as in input.messages or a.b[0].c
    #[arg(long, value_name = "COLUMN")]
    pub prompt_column: Option<String>,
    /// Prompt made from a row's fields, e.g. 'Summarise: {{text}}'
    #[arg(long, value_name = "TEXT", conflicts_with = "prompt_column")]
    pub template: Option<String>,
    /// Fields or columns with the name of a parameter (temperature, stop, n, ...) that set it for
    /// their rows: all, none, or names with commas between them; the others are data [default: all]
    #[arg(long, value_name = "all|none|NAMES", value_parser = OwnParams::parse)]
    #[arg(hide_short_help = true)]
    pub row_params: Option<OwnParams>,
    /// Send prompts as a user message through the chat template
    #[arg(long, conflicts_with = "no_chat")]
    pub chat: bool,
    /// Send prompts as plain text (the default for rows without messages)
    #[arg(long, hide_short_help = true)]
    pub no_chat: bool,
    /// How chats are read.
    #[command(flatten)]
    pub chats: ChatArgs,
    /// Images of the rows.
    #[command(flatten)]
    pub images: ImageArgs,
    /// When a run is continued: fetch images at URLs again, and compute rows again whose image is
    /// another (refetch), or take finished rows as they are (trust) [default: refetch]
    #[arg(long, value_name = "WHAT", requires = "allow_media_urls", hide_short_help = true)]
    pub on_resume_media: Option<ResumeMediaArg>,
    /// Complete only the first N rows
    #[arg(long, value_name = "N", value_parser = positive)]
    pub limit: Option<usize>,
    /// A random part of the rows.
    #[command(flatten)]
    pub sample: SampleArgs,
    /// Complete only rows I, I+N, ... (counted from 0); or auto, auto/N
    ///
    /// So N processes share an input; `merge` joins their outputs. auto takes I and N from a Slurm
    /// array; auto/N takes I from the index of a Kubernetes Indexed Job or the id of a Slurm task,
    /// counted from 0
    #[arg(long, value_name = "I/N", value_parser = shard_arg)]
    pub shard: Option<ShardArg>,
    /// A bad row becomes an error row (row), or ends the run (fail) [default: row]
    #[arg(long, value_name = "WHAT")]
    pub on_bad_row: Option<BadRowArg>,
    /// A prompt longer than the context is an error row, or is cut [default: error]
    #[arg(long, value_name = "WHAT", hide_short_help = true)]
    pub overflow: Option<OverflowArg>,
}

/// How chats are read.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Input")]
pub struct ChatArgs {
    /// System message of chats that have none
    #[arg(long, value_name = "TEXT", hide_short_help = true)]
    pub system_prompt: Option<String>,
    /// A chat that ends with the assistant's turn: leave the turn out, go on from it, or make an
    /// error row [default: drop]
    #[arg(long, value_name = "WHAT", hide_short_help = true)]
    pub last_assistant: Option<LastAssistantArg>,
    /// Variables for the chat template as a JSON object, e.g. '{"enable_thinking": false}'; a row's
    /// own `chat_template_kwargs` win
    #[arg(
        long,
        value_name = "JSON",
        alias = "default-chat-template-kwargs",
        hide_short_help = true
    )]
    pub chat_template_kwargs: Option<String>,
    /// Jinja file, or the template itself, that replaces the model's chat template
    #[arg(long, value_name = "FILE|TEXT", hide_short_help = true)]
    pub chat_template: Option<PathBuf>,
    /// Let text of chat messages produce control tokens (unsafe with text you do not trust)
    #[arg(long, hide_short_help = true)]
    pub allow_special: bool,
    /// Answer rows whose prompt is empty or white space, which are error rows without it
    #[arg(long, hide_short_help = true)]
    pub allow_empty_prompts: bool,
}

impl InputArgs {
    /// What was typed about chat templating.
    pub fn chat(&self) -> Option<bool> {
        match (self.chat, self.no_chat) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        }
    }
}

/// Images and recordings of rows.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Input")]
pub struct ImageArgs {
    /// Column or field with a row's images [default: image, images]
    ///
    /// A path relative to the input's folder, a data: URI, base64, or a list of these. They come
    /// before the prompt's text, or where it has <image>. '' leaves such fields alone
    #[arg(long, value_name = "COLUMN")]
    pub image_column: Option<String>,
    /// Column or field with a row's recordings [default: audio, audios]
    ///
    /// As --image-column has images. They come before the prompt's text, or where it has <audio>
    #[arg(long, value_name = "COLUMN", hide_short_help = true)]
    pub audio_column: Option<String>,
    /// Read images and recordings beneath DIR too; without it only beneath the folder of the input
    #[arg(long, value_name = "DIR", hide_short_help = true)]
    pub allowed_local_media_path: Option<PathBuf>,
    /// Fetch images and recordings at http and https URLs of rows
    ///
    /// Only from addresses of the public internet. A continued run fetches them again, unless
    /// --on-resume-media says otherwise
    #[arg(long, hide_short_help = true)]
    pub allow_media_urls: bool,
    /// Fetch from these hosts alone; an address that is named may be a private one
    #[arg(long, value_name = "HOST,...", value_delimiter = ',', num_args = 1..)]
    #[arg(requires = "allow_media_urls", hide_short_help = true)]
    pub allowed_media_domains: Vec<String>,
    /// Most images and recordings of a row, as '{"image": 4, "audio": 1}'; a row with more is an
    /// error row. No images leaves the vision tower out [default: 999 of each]
    #[arg(long, value_name = "JSON", value_parser = media_limits, hide_short_help = true)]
    pub limit_mm_per_prompt: Option<MediaLimits>,
    /// Cut recordings of the input into rows of at most so many seconds, where they are quiet
    ///
    /// Whisper hears 30. A row has `file`, `start` and `end`
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=600))]
    #[arg(hide_short_help = true)]
    pub max_audio_clip_s: Option<u32>,
    /// Pages of PDF files.
    #[command(flatten)]
    pub pages: PageArgs,
}

/// Pages of PDF files.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Input")]
pub struct PageArgs {
    /// Which pages of PDF files are rows, as 1-3,7,10- [default: all]
    #[arg(long, value_name = "PAGES", value_parser = PageNumbers::parse, hide_short_help = true)]
    pub pages: Option<PageNumbers>,
    /// Pixels of the longer side of a PDF's page [default: 1288, as olmOCR has it]
    #[arg(long, value_name = "PIXELS", value_parser = positive_u32, hide_short_help = true)]
    pub longest_side: Option<u32>,
    /// Pixels of an inch of a PDF's page, in place of --longest-side
    #[arg(long, value_name = "N", value_parser = positive_u32, conflicts_with = "longest_side")]
    #[arg(hide_short_help = true)]
    pub dpi: Option<u32>,
    /// Most seconds that a PDF's page may take to be drawn; one that takes longer is an error row
    /// [default: 60]
    #[arg(long, value_name = "SECONDS", value_parser = positive, hide_short_help = true)]
    pub page_timeout: Option<usize>,
}

impl ImageArgs {
    /// Which parts of files are rows, as it was typed.
    pub fn parts(&self) -> PartOptions {
        PartOptions { max_clip_seconds: self.max_audio_clip_s, ..self.pages.options() }
    }
}

impl PageArgs {
    /// What was typed.
    pub fn options(&self) -> PartOptions {
        let pages = self.pages.clone().unwrap_or_default();
        let drawing = Drawing::default();
        let scale = match (self.dpi, self.longest_side) {
            (Some(dpi), _) => PageScale::Dpi(dpi),
            (None, Some(pixels)) => PageScale::LongestSide(pixels),
            (None, None) => drawing.scale,
        };
        let max_seconds = self.page_timeout.map_or(drawing.max_seconds, |seconds| seconds as u64);
        let drawing = Drawing { scale, max_seconds };
        PartOptions { pages, drawing, max_clip_seconds: None }
    }
}

/// How the bytes of an input become rows.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
#[command(next_help_heading = "Input")]
pub struct LayoutArgs {
    /// What the input is [default: auto, from its name and first line]
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<FormatArg>,
    /// Encoding of the input's text: utf-8, utf-16le, windows-1252, shift_jis, gb18030, ...; a mark
    /// at the beginning of a file wins [default: auto, UTF-16 or UTF-8]
    #[arg(long, value_name = "NAME", value_parser = TextEncoding::parse, hide_short_help = true)]
    pub encoding: Option<TextEncoding>,
    /// What separates the cells of a table: one character, or tab [default: from the header]
    #[arg(long, value_name = "C", value_parser = delimiter, hide_short_help = true)]
    pub delimiter: Option<u8>,
    /// Tables have no header: their columns are called column_1, column_2, ...
    #[arg(long, hide_short_help = true)]
    pub no_header: bool,
}

impl LayoutArgs {
    /// How an input is read: as the flags say, else as its name does.
    pub fn resolve(&self, path: Option<&Path>) -> Layout {
        let format = FormatArg::resolve(self.format, path);
        let is_told = !matches!(self.format, None | Some(FormatArg::Auto));
        let of_tables = self.delimiter.is_some() || self.no_header;
        let format = match format {
            // A flag of tables says what the name does not.
            InputFormat::Auto | InputFormat::Txt if of_tables && !is_told => InputFormat::Csv,
            format => format,
        };
        Layout {
            format,
            is_told,
            encoding: self.encoding.unwrap_or_default(),
            delimiter: self.delimiter,
            no_header: self.no_header,
        }
    }

    /// Refuses flags that none of the inputs has a use for.
    ///
    /// # Errors
    /// One was typed.
    pub fn check(&self, layouts: &[Layout]) -> Result<(), CliError> {
        let any = |is: fn(InputFormat) -> bool| layouts.iter().any(|layout| is(layout.format));
        let flags = [
            ("--encoding", self.encoding.is_some(), any(|format| format != InputFormat::Parquet)),
            ("--delimiter", self.delimiter.is_some(), any(|format| format.delimiter().is_some())),
            ("--no-header", self.no_header, any(|format| format.delimiter().is_some())),
        ];
        let idle = flags.iter().find(|(_, is_typed, is_used)| *is_typed && !is_used);
        match (idle, layouts) {
            (Some((flag, ..)), [first, ..]) => {
                let format = first.format.name();
                let message = format!("{flag}: input of the format {format} has no use for it");
                Err(CliError::refused("flag", message).help("leave the flag out"))
            }
            _ => Ok(()),
        }
    }
}

/// `--format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum FormatArg {
    /// From the file's name and its first row
    Auto,
    /// One JSON value per line
    Jsonl,
    /// Comma separated, with a header
    Csv,
    /// Tab separated, with a header
    Tsv,
    /// One prompt per line
    Txt,
    /// The columns of a file
    Parquet,
}

impl FormatArg {
    /// How an input is divided into rows: as the flag says, else as its name does.
    fn resolve(flag: Option<Self>, path: Option<&Path>) -> InputFormat {
        match flag {
            None | Some(FormatArg::Auto) => path.map_or(InputFormat::Auto, InputFormat::from_path),
            Some(FormatArg::Jsonl) => InputFormat::Jsonl,
            Some(FormatArg::Csv) => InputFormat::Csv,
            Some(FormatArg::Tsv) => InputFormat::Tsv,
            Some(FormatArg::Txt) => InputFormat::Txt,
            Some(FormatArg::Parquet) => InputFormat::Parquet,
        }
    }
}

/// `--last-assistant`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LastAssistantArg {
    /// The turn is the reference answer, and not sent
    #[default]
    Drop,
    /// The answer goes on from it
    Continue,
    /// An error row
    Error,
}

impl From<LastAssistantArg> for LastAssistant {
    fn from(arg: LastAssistantArg) -> Self {
        match arg {
            LastAssistantArg::Drop => LastAssistant::Drop,
            LastAssistantArg::Continue => LastAssistant::Continue,
            LastAssistantArg::Error => LastAssistant::Error,
        }
    }
}

/// `--loglikelihood`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LoglikelihoodArg {
    /// Each of a row's `choices`, after its prompt
    Choices,
    /// A row's text
    Text,
}

impl From<LoglikelihoodArg> for Likelihoods {
    fn from(arg: LoglikelihoodArg) -> Self {
        match arg {
            LoglikelihoodArg::Choices => Likelihoods::OfChoices,
            LoglikelihoodArg::Text => Likelihoods::OfTexts,
        }
    }
}

/// `--on-bad-row`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum BadRowArg {
    /// An error row in its place
    Row,
    /// End the run, exit 2
    Fail,
}

/// `--on-resume-media`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ResumeMediaArg {
    /// Fetch them again
    Refetch,
    /// Take what the journal has of them
    Trust,
}

/// `--overflow`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum OverflowArg {
    /// An error row
    Error,
    /// Keep the end of the prompt
    TruncateLeft,
    /// Keep the beginning of the prompt
    TruncateRight,
}
