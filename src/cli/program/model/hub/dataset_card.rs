//! What a dataset's README.md says of its files: `configs:` of the YAML at its beginning, as the
//! library `datasets` reads it. Of YAML no more is read than such lists have.

use serde_json::{Map, Value};

/// A configuration (a subset) of a dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// Its name.
    pub name: String,
    /// It is the one that is meant where nobody says which.
    pub is_default: bool,
    /// Splits, and patterns of their files. None: they are found by their names.
    pub splits: Option<Vec<(String, Vec<String>)>>,
    /// The folder of its files.
    pub folder: Option<String>,
}

/// The configurations that a README.md names; none if it names none.
///
/// # Errors
/// They are written in a way that is not read; in words.
pub fn configs(readme: &str) -> Result<Vec<Config>, String> {
    let Some(lines) = section(readme) else { return Ok(Vec::new()) };
    let mut lines = Lines { lines, at: 0 };
    let value = lines.block(0)?;
    let odd = || "its configs are no list of names and files".to_owned();
    // A line that is indented otherwise than those before it is of nothing.
    let is_read = lines.at == lines.lines.len();
    let list = value.as_array().filter(|_| is_read).ok_or_else(odd)?;
    list.iter().map(|config| Config::of(config.as_object()?)).collect::<Option<_>>().ok_or_else(odd)
}

impl Config {
    fn of(fields: &Map<String, Value>) -> Option<Self> {
        let text = |name: &str| fields.get(name).and_then(Value::as_str).map(str::to_owned);
        let splits = match fields.get("data_files") {
            None | Some(Value::Null) => None,
            Some(Value::Array(list)) if list.iter().all(Value::is_object) => {
                let split = |split: &Value| {
                    let name = split.get("split").and_then(Value::as_str).unwrap_or("train");
                    Some((name.to_owned(), patterns(split.get("path")?)?))
                };
                Some(list.iter().map(split).collect::<Option<_>>()?)
            }
            Some(Value::Object(splits)) => {
                let split =
                    |(name, paths): (&String, &Value)| Some((name.clone(), patterns(paths)?));
                Some(splits.iter().map(split).collect::<Option<_>>()?)
            }
            Some(paths) => Some(vec![("train".to_owned(), patterns(paths)?)]),
        };
        Some(Self {
            name: text("config_name").unwrap_or_else(|| "default".to_owned()),
            is_default: fields.get("default").and_then(Value::as_str) == Some("true"),
            splits,
            folder: text("data_dir"),
        })
    }
}

/// A pattern, or several.
fn patterns(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::Array(list) => list.iter().map(|one| Some(one.as_str()?.to_owned())).collect(),
        one => Some(vec![one.as_str()?.to_owned()]),
    }
}

/// A line that says something: how far it is indented, and its text.
type Line<'a> = (usize, &'a str);

/// The lines below `configs:` in the YAML between two `---`.
fn section(readme: &str) -> Option<Vec<Line<'_>>> {
    let mut lines = readme.trim_start_matches('\u{feff}').lines();
    (lines.next()?.trim_end() == "---").then_some(())?;
    let yaml = lines.take_while(|line| line.trim_end() != "---");
    let mut below = yaml.skip_while(|line| line.trim_end() != "configs:");
    below.next()?;
    let is_within = |line: &&str| line.is_empty() || line.starts_with([' ', '-', '#', '\t']);
    let said = below.take_while(is_within).filter_map(|line| {
        let text = line.trim();
        let is_said = !text.is_empty() && !text.starts_with('#');
        is_said.then(|| (line.len() - line.trim_start().len(), text))
    });
    Some(said.collect())
}

/// Lines that are read from the first to the last.
struct Lines<'a> {
    lines: Vec<Line<'a>>,
    at: usize,
}

/// How deep lists and names may nest.
const MAX_DEPTH: usize = 8;

impl<'a> Lines<'a> {
    /// The list, names or text that begin at this line, and are indented as far.
    fn block(&mut self, depth: usize) -> Result<Value, String> {
        let Some(&(indent, text)) = self.lines.get(self.at).filter(|_| depth < MAX_DEPTH) else {
            return Ok(Value::Null);
        };
        if item(text).is_some() {
            return self.list(indent, depth);
        }
        match pair(text) {
            Some(_) => self.names(indent, depth),
            None => {
                self.at += 1;
                scalar(text)
            }
        }
    }

    fn list(&mut self, indent: usize, depth: usize) -> Result<Value, String> {
        let mut list = Vec::new();
        while let Some(&(found, text)) = self.lines.get(self.at) {
            let Some(rest) = item(text).filter(|_| found == indent) else { break };
            let inner = rest.trim_start();
            if inner.is_empty() {
                self.at += 1;
                list.push(self.below(indent, depth)?);
            } else {
                // What stands behind the dash is the first line of what it holds.
                self.lines[self.at] = (indent + text.len() - inner.len(), inner);
                list.push(self.block(depth + 1)?);
            }
        }
        Ok(Value::Array(list))
    }

    fn names(&mut self, indent: usize, depth: usize) -> Result<Value, String> {
        let mut names = Map::new();
        while let Some(&(found, text)) = self.lines.get(self.at) {
            let Some((name, value)) = pair(text).filter(|_| found == indent) else { break };
            self.at += 1;
            let value = match value {
                "" => self.below(indent, depth)?,
                value => scalar(value)?,
            };
            names.insert(unquoted(name).to_owned(), value);
        }
        Ok(Value::Object(names))
    }

    /// What belongs to the line above: further lines, or a list that is indented as far.
    fn below(&mut self, indent: usize, depth: usize) -> Result<Value, String> {
        match self.lines.get(self.at) {
            Some(&(found, text)) if found > indent || found == indent && item(text).is_some() => {
                self.block(depth + 1)
            }
            _ => Ok(Value::Null),
        }
    }
}

/// What stands behind the dash of a list's item.
fn item(text: &str) -> Option<&str> {
    text.strip_prefix('-').filter(|rest| rest.is_empty() || rest.starts_with(' '))
}

/// `name: value`
fn pair(text: &str) -> Option<(&str, &str)> {
    let at = text.find(": ").or_else(|| text.ends_with(':').then(|| text.len() - 1))?;
    let is_name = !text.starts_with(['"', '\'', '[', '{']) || text[..at].ends_with(['"', '\'']);
    is_name.then(|| (&text[..at], text[at + 1..].trim()))
}

/// A text, or a list of texts in one line.
fn scalar(text: &str) -> Result<Value, String> {
    let text =
        if text.starts_with(['"', '\'']) { text } else { text.split(" #").next().unwrap_or("") };
    let text = text.trim_end();
    if let Some(inner) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        let parts = inner.split(',').map(str::trim).filter(|part| !part.is_empty());
        return parts.map(scalar).collect::<Result<_, _>>().map(Value::Array);
    }
    match text.starts_with(['|', '>', '&', '*', '!', '{', '['])
        && !text.starts_with("**")
        && !text.starts_with("*.")
    {
        true => Err(format!("its configs have {text:?}, which is not read")),
        false => Ok(Value::String(unquoted(text).to_owned())),
    }
}

fn unquoted(text: &str) -> &str {
    let within = |quote: char| text.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
    within('"').or_else(|| within('\'')).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(yaml: &str) -> Result<Vec<Config>, String> {
        configs(&format!("---\nlicense: mit\n{yaml}language:\n- en\n---\n# Title\nconfigs:\n- x\n"))
    }

    #[test]
    fn configurations_name_splits_and_files() {
        let list = "configs:\n- config_name: main\n  data_files:\n  - split: train\n    path: main/train-*\n  \
                    - split: test  # held out\n    path:\n    - \"a-*.parquet\"\n    - b.parquet\n- config_name: 'socratic'\n  \
                    default: true\n  data_files:\n    - split: test\n      path: [x.jsonl, 'y.jsonl']\n";
        let split = |name: &str, paths: &[&str]| {
            (name.to_owned(), paths.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>())
        };
        let main =
            [split("train", &["main/train-*"]), split("test", &["a-*.parquet", "b.parquet"])];
        let wanted = [
            Config { name: "main".into(), splits: Some(main.into()), ..Config::default() },
            Config {
                name: "socratic".into(),
                is_default: true,
                splits: Some(vec![split("test", &["x.jsonl", "y.jsonl"])]),
                folder: None,
            },
        ];
        assert_eq!(found(list).unwrap(), wanted);
    }

    #[test]
    fn files_may_be_one_text_a_list_names_or_a_folder() {
        let splits = |yaml: &str| {
            found(&format!("configs:\n  - config_name: c\n{yaml}")).unwrap().remove(0).splits
        };
        let one = |name: &str, path: &str| Some(vec![(name.to_owned(), vec![path.to_owned()])]);
        assert_eq!(splits("    data_files: \"*.csv\"\n"), one("train", "*.csv"));
        assert_eq!(splits("    data_files: **/*.csv\n"), one("train", "**/*.csv"));
        assert_eq!(splits("    data_files:\n      test: t.csv\n"), one("test", "t.csv"));
        assert_eq!(splits("    data_files:\n    - a.csv\n"), one("train", "a.csv"));
        assert_eq!(splits("    data_dir: en\n"), None);
        let folder =
            found("configs:\n- config_name: c\n  data_dir: en\n").unwrap().remove(0).folder;
        assert_eq!(folder.as_deref(), Some("en"));
        assert_eq!(configs("# no yaml\n").unwrap(), []);
        assert_eq!(found("").unwrap(), []);
    }

    #[test]
    fn what_is_not_read_is_said() {
        assert!(found("configs:\n- config_name: &a x\n").unwrap_err().contains("not read"));
        assert!(found("configs:\n- a\n").is_err());
        assert!(found("configs:\n  - config_name: c\n - config_name: d\n").is_err());
        assert!(found(&format!("configs:\n- {}x\n", "- ".repeat(99))).is_err());
    }
}
