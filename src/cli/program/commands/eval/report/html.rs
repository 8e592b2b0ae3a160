//! The report as one page that loads nothing: filters, groups, plots. Rows are data in it, and its
//! script shows them as text only.

use std::io::{self, Write};

use serde_json::{Value, json};

use super::super::rows::JudgedRow;

/// What stands before the data.
const BEGIN: &str = include_str!("page.html");

/// What stands behind it.
const END: &str = include_str!("page_end.html");

/// Writes the page up to the first row.
///
/// # Errors
/// As the writer.
pub fn begin(report: &Value, out: &mut dyn Write) -> io::Result<()> {
    write!(out, "{BEGIN}{{\"report\":{},\"rows\":[", inert(report))
}

/// Writes a row. `flip`: 1 of a row that was wrong in the baseline and is right, -1 of the other;
/// and the answer that it had there. `images`: each with its name, and a picture of it or why there
/// is none.
///
/// # Errors
/// As the writer.
pub fn row(
    row: &JudgedRow,
    (flip, then): (i8, Option<&str>),
    images: Vec<Value>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let length = row.answer.chars().count();
    let row = row.shortened();
    let mut shown = json!({"row": row.number});
    let mut set = |name: &str, value: Value| {
        if !value.is_null() {
            shown[name] = value;
        }
    };
    set("id", row.id.into());
    set("group", row.group.into());
    set("question", row.question.into());
    if !images.is_empty() {
        set("images", images.into());
    }
    if flip != 0 {
        set("flip", flip.into());
        set("then", then.into());
    }
    if row.is_cut {
        set("cut", true.into());
    }
    set("tokens", row.tokens[1].into());
    match row.error {
        Some(error) => set("error", error.into()),
        None => {
            set("score", row.score.into());
            set("passed", row.passed.into());
            set("expected", row.expected.into());
            set("answer", row.answer.into());
            set("extracted", row.extracted.into());
            set("reason", row.reason.into());
            set("length", length.into());
        }
    }
    write!(out, "{}\n{}", if row.number > 1 { "," } else { "" }, inert(&shown))
}

/// Writes the rest of the page.
///
/// # Errors
/// As the writer.
pub fn end(out: &mut dyn Write) -> io::Result<()> {
    write!(out, "\n]}}{END}")
}

/// JSON that ends no element and begins no comment, whatever its texts are.
fn inert(value: &Value) -> String {
    value.to_string().replace('<', "\\u003c").replace('\u{2028}', "\\u2028")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_ends_the_data() {
        let answer = "</script><!--<script>alert(1)</script>".to_owned();
        let hostile = JudgedRow { number: 1, answer: answer.clone(), ..JudgedRow::default() };
        let mut page = Vec::new();
        begin(&json!({"a": "</SCRIPT>"}), &mut page).unwrap();
        let image = json!({"name": answer, "why": "</script>"});
        row(&hostile, (-1, Some("<!--")), vec![image], &mut page).unwrap();
        end(&mut page).unwrap();
        let page = String::from_utf8(page).unwrap();
        let (_, data) = page.split_once("id=\"data\">").unwrap();
        let (data, _) = data.split_once("</script>").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["rows"][0]["answer"], answer);
        assert_eq!(data["rows"][0]["flip"], -1);
        assert_eq!(data["rows"][0]["images"][0]["name"], answer);
        for source in ["src=", "href=", "http", "innerHTML", "@import", "url("] {
            let page = page.replace("http://www.w3.org/2000/svg", "");
            assert!(!page.replace("http-equiv", "").contains(source), "{source}");
        }
    }
}
