//! Decisions of the first row that has a prompt for all others: their shape, and their task.

use std::collections::VecDeque;
use std::sync::Arc;

use super::endpoint::Endpoint;
use super::named::{Named, NamedRow};
use super::near_miss::NearMisses;
use super::own_images::flag;
use super::prompt::PromptBuilder;
use super::remarks::Remarks;
use super::shape::{NoShape, RowShape};
use super::{RowOptions, RowParser, Task, own};
use crate::input::fields::JsonFields;
use crate::input::overrides::names_for;
use crate::input::own_params::is_parameter;
use crate::input::reader::{InputError, InputFormat, Records};
use crate::input::row_error::{RowError, code};
use vllm_batch_media::MediaKind;

/// Records, and bytes of them, that are read ahead in search of one that decides.
const MAX_LEADING: (usize, usize) = (1024, 16 << 20);

/// How values begin that cannot name an image: numbers, null, true and false.
const IS_NO_TEXT: &[char] = &['-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'n', 't', 'f'];

impl RowParser {
    /// A parser that has seen no row.
    pub(super) fn undecided(
        builder: PromptBuilder,
        options: &RowOptions,
        format: InputFormat,
    ) -> Self {
        Self {
            builder,
            task: options.task,
            lines_decide: options.lines_decide,
            format,
            lines: options.lines,
            names: None,
            field_names: Arc::default(),
            shape: None,
            next_index: 0,
            beside: None,
            note: None,
            remarks: Remarks::default(),
            near_misses: NearMisses::default(),
            are_streamed: options.are_streamed,
            named_params: Vec::new(),
            expected: options.expected_column.clone().filter(|_| options.prompt_column.is_none()),
            file: None,
        }
    }

    /// Looks for the first row that decides. Rows without a prompt say nothing of the others, and
    /// are error rows if others have one.
    pub(super) fn read_ahead(&mut self, records: &mut Records) -> Result<(), InputError> {
        let (mut leading, mut bytes) = (VecDeque::new(), 0);
        let (max_records, max_bytes) = MAX_LEADING;
        let (mut refused, mut may_decide) = (None, true);
        while self.shape.is_none() && may_decide && leading.len() < max_records && bytes < max_bytes
        {
            let Some(record) = records.next().transpose()? else { break };
            bytes += record.num_bytes();
            let line = record.line;
            if let Named::Row(row, _) = self.name_fields(record.clone())? {
                match self.decide_by(&row, line) {
                    Ok(()) => {}
                    Err(NoShape::Refused(error)) => return Err(error),
                    // Whoever sends rows one by one may wait for the answer to this one.
                    Err(NoShape::Lacks(_)) if self.are_streamed => may_decide = false,
                    Err(NoShape::Lacks(_)) if self.builder.null_prompt(&row).is_some() => {}
                    Err(NoShape::Lacks(error)) => drop(refused.get_or_insert(error)),
                }
            }
            leading.push_back(record);
        }
        records.give_back(leading);
        match refused.filter(|_| self.shape.is_none()) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Why a row has no shape where none is decided yet, if it has none.
    pub(super) fn undecided_by(
        &mut self,
        row: &NamedRow,
        line: u64,
    ) -> Result<Option<RowError>, InputError> {
        match (self.decide_by(row, line), self.builder.null_prompt(row)) {
            (Ok(()), _) => Ok(None),
            (Err(NoShape::Lacks(_)), Some(name)) => {
                let message = format!("`{name}` is null: the row has no prompt");
                Ok(Some(RowError::new(code::ROW_SHAPE, line, message)))
            }
            (Err(NoShape::Lacks(error) | NoShape::Refused(error)), _) => Err(error),
        }
    }

    fn decide_by(&mut self, row: &NamedRow, line: u64) -> Result<(), NoShape> {
        if self.shape.is_some() {
            return Ok(());
        }
        let shape = self.builder.shape_of_first(row, line)?;
        self.refuse_expected(&shape)?;
        if shape == RowShape::OpenAiBatch {
            match Endpoint::of_line(&row.fields) {
                Some(endpoint) if self.lines_decide && endpoint.is_of_batches() => {
                    self.task = endpoint.task();
                    self.builder.decide(self.task);
                }
                Some(endpoint) if endpoint.is_served(self.task) => {}
                // In a stream it is an error row.
                _ if self.are_streamed => {}
                _ => return Err(NoShape::Lacks(self.not_served(row, line))),
            }
        }
        self.beside = self.builder.beside(row).filter(|_| !self.task.compares());
        let has_text = |name: &str| {
            row.fields.get(name).is_some_and(|json| json.len() > 2 && !json.starts_with(IS_NO_TEXT))
        };
        let is_batch = shape.is_batch();
        self.decide(shape, row.fields.get("system").is_some());
        if !is_batch {
            self.say_unread_images(has_text);
        }
        Ok(())
    }

    /// Names a field that may hold media, and is not read.
    fn say_unread_images(&mut self, is_there: impl Fn(&str) -> bool) {
        let found = self.builder.unread_media(is_there);
        if let Some((kind, name)) = found.filter(|_| self.beside.is_none() && !self.task.compares())
        {
            let (flag, noun) = match kind {
                MediaKind::Image => (flag(kind), "an image"),
                MediaKind::Sound => (flag(kind), "a recording"),
            };
            let note = format!("`{name}` is not read as {noun}; {flag} {name} reads it");
            self.remarks.say(note);
        }
    }

    /// The refusal of a file none of whose requests can be answered.
    fn not_served(&self, row: &NamedRow, line: u64) -> InputError {
        let url = row.fields.get("url").unwrap_or("nothing");
        let message = format!("line {line}: the request is for {url}, which is not answered here");
        let help = match self.lines_decide {
            true => format!("`run` answers {}", Endpoint::ALL_URLS),
            false => Endpoint::served(self.task).to_owned(),
        };
        InputError::refused(message, help)
    }

    /// The columns of a table decide for all of its rows.
    pub(super) fn decide_by_columns(&mut self) -> Result<(), InputError> {
        let names = Arc::clone(&self.field_names);
        let shape = self.builder.shape_of_columns(&names)?;
        self.refuse_expected(&shape)?;
        self.beside = self.builder.beside_of_columns(&names).filter(|_| !self.task.compares());
        self.decide(shape, names.iter().any(|name| name == "system"));
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        self.say_unread_images(|name| names.contains(&name));
        self.say_params("column", &names);
        Ok(())
    }

    /// Refuses rows that would be asked what is expected of them.
    fn refuse_expected(&self, shape: &RowShape) -> Result<(), InputError> {
        let is_asked = |expected: &str| match shape {
            RowShape::Field(name, _) => name == expected,
            RowShape::Alpaca => ["instruction", "input"].contains(&expected),
            _ => false,
        };
        match &self.expected {
            Some(name) if is_asked(name) => {
                let message = format!(
                    "--expected-column {name}: the rows' prompt would be `{name}`, which is what \
                     is expected"
                );
                let help = "name the prompt with --prompt-column, or make it with --template; \
                            --template '' sends recordings or images alone";
                Err(InputError::refused(message, help))
            }
            _ => Ok(()),
        }
    }

    fn decide(&mut self, shape: RowShape, has_system: bool) {
        let rows = match &shape {
            RowShape::Template => "fill --template".to_owned(),
            shape => format!("are {shape}"),
        };
        let mut note = format!("rows {rows}, {}", self.builder.treatment(&shape, self.beside));
        if has_system && self.beside.is_none() && !self.builder.is_chat(&shape) {
            note.push_str("; their `system` field is not sent without --chat");
        }
        self.note = Some(note);
        self.shape = Some(shape);
    }

    /// Names the fields of a row that set parameters, each once.
    pub(super) fn name_params(&mut self, row: &NamedRow) {
        let is_batch = self.shape.as_ref().is_some_and(RowShape::is_batch);
        if is_batch || self.names.is_some() || row.is_bare {
            return;
        }
        let shape = self.shape.as_ref();
        let beside = shape.and_then(|shape| own::beside_messages(shape, &row.fields));
        let beside = beside.iter().flat_map(JsonFields::iter);
        let given = row.fields.iter().chain(beside).filter(|field| {
            let is_own = field.name == "response_format" && !field.value.starts_with('{');
            field.value != "null" && !is_own
        });
        let names: Vec<_> = given.map(|field| field.name).collect();
        let names: Vec<&str> = names.iter().map(|name| &**name).collect();
        self.say_params("field", &names);
    }

    fn say_params(&mut self, what: &str, names: &[&str]) {
        let is_chat = self.beside.is_some()
            || self.shape.as_ref().is_some_and(|shape| self.builder.is_chat(shape));
        let own_params = self.builder.own_params();
        let sets = |name: &str| match name {
            "lora" => self.builder.names().has_adapters(),
            "top_n" | "use_activation" => names_for(self.task).any(|known| known == name),
            name if !is_parameter(name) => false,
            name => names_for(self.task).any(|known| known == name) || is_chat && is_of_chats(name),
        };
        let mut new: Vec<&str> = Vec::new();
        for &name in names {
            let is_new = !new.contains(&name) && !self.named_params.iter().any(|old| old == name);
            if is_new && !own_params.is_data(name) && sets(name) {
                new.push(name);
            }
        }
        if !new.is_empty() {
            self.remarks.say(own_params.note(what, &new));
            self.named_params.extend(new.iter().map(|name| (*name).to_owned()));
        }
    }
}

/// Whether a parameter is one of chats alone.
fn is_of_chats(name: &str) -> bool {
    names_for(Task::Complete).all(|known| known != name)
}
