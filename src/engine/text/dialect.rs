//! What minijinja does not read as jinja2 does, rewritten token by token before it compiles.
//!
//! - `{% generation %}..{% endgeneration %}` of transformers marks what an assistant wrote, for
//!   training; it prints its body in a scope of its own, and so does `{% with %}..{% endwith %}`.
//! - Slices: minijinja 3.0.5 panics on `""[::-1]`, includes the end of `x[2:0:-1]`, and its slices
//!   of lists are not lists. `x[a:b:c]` becomes `x.__slice__(a,b,c)`, see `python_methods::slice`.
//! - Escapes of string literals are read as Python reads them, and integers have any size.
//! - A newline after `{% raw %}` stays, where minijinja takes it.
//! - Newlines are `\n`, as jinja2 reads its sources.
//! - The left operand of `~`, `+` and the like passes through a filter that counts it: minijinja
//!   would multiply constants while it compiles, without a limit. So does a constant that is
//!   compared.
//!
//! Text, comments and raw blocks are not touched.

use super::python::literal;

/// The method that slices become. Templates cannot call it themselves: jinja2's sandbox refuses
/// names that begin with an underscore.
pub(super) const SLICE_METHOD: &str = "__slice__";

/// The filter that every value passes that an operator makes larger; see `budget`.
pub(super) const MADE: &str = "__made__";

/// The filter that makes integers of digits.
pub(super) const INTEGER: &str = "__integer__";

/// Digits of an integer that minijinja always has room for.
const MAX_DIGITS: usize = 38;

/// Most operators of one tag: what compiling takes grows with the square of their number.
const MAX_OPERATORS: usize = 1000;

/// Most steps of one expression: names after dots, filters, brackets, signs. Each is a level of the
/// tree, which the compiler walks with a level of the stack.
const MAX_STEPS: usize = 2000;

/// Most `elif` of a template, each of which is nested in the one before.
const MAX_ELIF: usize = 1000;

/// A template that minijinja renders as jinja2 renders `source`.
///
/// # Errors
/// An expression has too many operators, or is nested too deeply.
pub(super) fn translate(source: &str) -> Result<String, String> {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    let mut rest = source.as_str();
    let mut num_elif = 0;
    while let Some(at) = find_tag(rest) {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        rest = match &rest[..2] {
            "{#" => copy(rest, rest.find("#}").map(|end| end + 2), &mut out),
            "{%" => {
                let after = block_name(rest, &mut out);
                num_elif += usize::from(out.ends_with("elif"));
                if num_elif > MAX_ELIF {
                    return Err(format!("more than {MAX_ELIF} `elif`"));
                }
                let is_raw = out.ends_with("raw") && !out.ends_with("endraw");
                let body = expression(after, "%}", &mut out)?;
                if is_raw && body.starts_with('\n') && !out.ends_with("-%}") {
                    out.push('\n');
                }
                if is_raw { copy(body, end_of_raw(body), &mut out) } else { body }
            }
            _ => {
                out.push_str("{{");
                expression(&rest[2..], "}}", &mut out)?
            }
        };
    }
    out.push_str(rest);
    Ok(out)
}

/// Where the next `{{`, `{%` or `{#` is.
fn find_tag(text: &str) -> Option<usize> {
    text.match_indices('{')
        .map(|(at, _)| at)
        .find(|&at| matches!(text.as_bytes().get(at + 1), Some(b'{' | b'%' | b'#')))
}

/// Copies up to `end` (or all of it) and returns the rest.
fn copy<'a>(text: &'a str, end: Option<usize>, out: &mut String) -> &'a str {
    let end = end.unwrap_or(text.len());
    out.push_str(&text[..end]);
    &text[end..]
}

/// Copies `{%-  name`, the name translated.
fn block_name<'a>(tag: &'a str, out: &mut String) -> &'a str {
    let is_head = |c: char| c.is_whitespace() || matches!(c, '-' | '+');
    let inside = &tag[2..];
    let name = inside.trim_start_matches(is_head);
    let len = name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len());
    out.push_str(&tag[..tag.len() - name.len()]);
    out.push_str(match &name[..len] {
        "generation" => "with",
        "endgeneration" => "endwith",
        other => other,
    });
    &name[len..]
}

/// Where the tag that ends a raw block begins.
fn end_of_raw(text: &str) -> Option<usize> {
    let is_end = |at: &usize| {
        let name = text[at + 2..].trim_start_matches(|c: char| c.is_whitespace() || c == '-');
        name.starts_with("endraw")
    };
    text.match_indices("{%").map(|(at, _)| at).find(is_end)
}

/// Copies an expression and the `end` that closes its tag, slices translated. Returns the rest.
fn expression<'a>(text: &'a str, end: &str, out: &mut String) -> Result<&'a str, String> {
    let mut num_operators = 0;
    let mut num_steps = 0;
    // Up to the `in` of a loop there are names.
    let mut are_targets = out.ends_with("for");
    // Open brackets: where each is in `out`, and where its own colons are.
    let mut open: Vec<(usize, Vec<usize>)> = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if open.is_empty() && rest.starts_with(end) {
            out.push_str(end);
            return Ok(&rest[end.len()..]);
        }
        num_steps += usize::from(is_step(out, rest));
        check_size(num_steps, num_operators)?;
        match c {
            '\'' | '"' => {
                rest = string(rest, c, out)?;
                continue;
            }
            '0'..='9' if begins_number(out) => {
                rest = number(rest, out)?;
                continue;
            }
            '=' | '!' | '<' | '>' | 'i' | 'n' if is_comparison(out, rest) => {
                let is_loop = c == 'i' && open.is_empty() && std::mem::take(&mut are_targets);
                rest = comparison(rest, is_loop, out);
                continue;
            }
            '(' | '[' | '{' => open.push((out.len(), Vec::new())),
            ':' => {
                if let Some((at, colons)) = open.last_mut()
                    && out[*at..].starts_with('[')
                {
                    colons.push(out.len());
                }
            }
            ')' | ']' | '}' => {
                if let Some((at, colons)) = open.pop()
                    && c == ']'
                    && !colons.is_empty()
                {
                    slice_call(at, &colons, out);
                    rest = &rest[1..];
                    continue;
                }
            }
            // minijinja has no sign `+`: it is that of the negated.
            '+' if is_sign(out) && !(open.is_empty() && rest[1..].starts_with(end)) => {
                out.push_str("- -");
                num_steps += 1;
                rest = &rest[1..];
                continue;
            }
            '~' | '+' | '-' | '*' | '/' | '%' => {
                // `**` and `//` are one operator each.
                let len = 1 + usize::from(matches!(c, '*' | '/') && rest[1..].starts_with(c));
                if ends_operand(out) && !(open.is_empty() && rest[1..].starts_with(end)) {
                    make(out);
                    num_operators += 1;
                }
                rest = copy(rest, Some(len), out);
                continue;
            }
            'a' | 'o' => num_operators += usize::from(is_junction(out, rest)),
            _ => {}
        }
        rest = copy(rest, Some(c.len_utf8()), out);
    }
    Ok(rest)
}

/// Refuses expressions that compile too slowly, or too deep into the stack.
fn check_size(num_steps: usize, num_operators: usize) -> Result<(), String> {
    match (num_steps > MAX_STEPS, num_operators > MAX_OPERATORS) {
        (true, _) => Err(format!("an expression with more than {MAX_STEPS} steps")),
        (_, true) => Err(format!("an expression with more than {MAX_OPERATORS} operators")),
        _ => Ok(()),
    }
}

/// Passes the operand before an operator through the filter that counts it.
fn make(out: &mut String) {
    out.truncate(out.trim_end().len());
    out.push_str(&format!("|{MADE} "));
}

/// Copies an operator that compares, or the first character of its word.
fn comparison<'a>(rest: &'a str, is_loop: bool, out: &mut String) -> &'a str {
    if !is_loop && ends_constant(out) {
        make(out);
    }
    let len = rest.len() - rest.trim_start_matches(['=', '!', '<', '>']).len();
    copy(rest, Some(len.max(1)), out)
}

/// Whether something comes next that makes the tree of an expression deeper.
fn is_step(before: &str, rest: &str) -> bool {
    rest.starts_with(['.', '|', '(', '[', '{', '-', '+'])
        || is_word(before, rest, &["not", "is", "if", "else"])
}

/// Whether `and` or `or` comes next.
fn is_junction(before: &str, rest: &str) -> bool {
    is_word(before, rest, &["and", "or"])
}

/// Whether one of these words comes next.
fn is_word(before: &str, rest: &str, words: &[&str]) -> bool {
    let goes_on = |c: char| c.is_alphanumeric() || c == '_';
    let after = words.iter().find_map(|word| rest.strip_prefix(word));
    after.is_some_and(|after| !after.starts_with(goes_on)) && !before.ends_with(goes_on)
}

/// Whether an operator after this text has a left operand, or is a sign.
fn ends_operand(text: &str) -> bool {
    let text = text.trim_end();
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let word = &text[text.trim_end_matches(is_word).len()..];
    let keywords =
        ["and", "or", "not", "in", "is", "if", "else", "elif", "for", "set", "do", "print"];
    text.ends_with(|c: char| is_word(c) || matches!(c, ')' | ']' | '}' | '\'' | '"'))
        && !keywords.contains(&word)
        // 1e-7 is one number.
        && !(word.starts_with(|c: char| c.is_ascii_digit()) && word.ends_with(['e', 'E']))
}

/// Copies a string literal, its escapes read as Python reads them.
fn string<'a>(rest: &'a str, quote: char, out: &mut String) -> Result<&'a str, String> {
    let Some(end) = end_of_string(rest, quote) else { return Ok(copy(rest, None, out)) };
    let literal = &rest[..end];
    match literal.contains('\\') {
        true => {
            let text = literal::unescape(&literal[1..end - 1])
                .map_err(|error| format!("the string {literal:.100}: {error}"))?;
            out.push(quote);
            out.push_str(&literal::escape(&text, quote));
            out.push(quote);
        }
        false => out.push_str(literal),
    }
    Ok(&rest[end..])
}

/// Whether a digit after this text begins a number, and is not one of a name or of a fraction.
fn begins_number(before: &str) -> bool {
    !before.ends_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | '.'))
}

/// Copies a number; a decimal integer that minijinja has no room for as a call of `INTEGER`.
fn number<'a>(rest: &'a str, out: &mut String) -> Result<&'a str, String> {
    let is_digit = |c: char| c.is_ascii_digit() || c == '_';
    let (digits, after) = rest.split_at(rest.find(|c| !is_digit(c)).unwrap_or(rest.len()));
    let goes_on = |c: char| c.is_alphanumeric();
    let is_whole = !after.starts_with(goes_on)
        && !after
            .strip_prefix('.')
            .is_some_and(|after| after.starts_with(|c: char| c.is_ascii_digit()));
    if is_whole && digits.starts_with('0') && digits.contains(|c| !matches!(c, '0' | '_')) {
        return Err(format!("the number {digits:.100} begins with a zero"));
    }
    match is_whole && digits.len() > MAX_DIGITS {
        true => out.push_str(&format!("('{digits}'|{INTEGER})")),
        false => out.push_str(digits),
    }
    Ok(after)
}

/// Whether a comparison comes next.
fn is_comparison(before: &str, rest: &str) -> bool {
    let is_assigned = rest.starts_with('=') && !rest.starts_with("==");
    let is_not_in =
        || is_word(before, rest, &["not"]) && is_word("", rest[3..].trim_start(), &["in"]);
    match rest.chars().next() {
        Some('i') => is_word(before, rest, &["in"]),
        Some('n') => is_not_in(),
        Some('!') => rest.starts_with("!="),
        _ => !is_assigned,
    }
}

/// Whether what minijinja would compute while it compiles may end here: its numbers and comparisons
/// are not Python's.
fn ends_constant(text: &str) -> bool {
    let text = text.trim_end();
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let word = &text[text.trim_end_matches(is_word).len()..];
    text.ends_with(['\'', '"', ')', ']', '}'])
        || word.starts_with(|c: char| c.is_ascii_digit())
        || matches!(word, "true" | "false" | "none" | "True" | "False" | "None")
}

/// Where a string literal ends, its quotes included.
fn end_of_string(text: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        if c == quote && !escaped {
            return Some(at + 1);
        }
        escaped = c == '\\' && !escaped;
    }
    None
}

/// Whether `+` after this text is a sign: not of an exponent, an operator or a tag.
fn is_sign(text: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let word = &text[text.trim_end_matches(is_word).len()..];
    let is_exponent = word.starts_with(|c: char| c.is_ascii_digit()) && word.ends_with(['e', 'E']);
    !is_exponent && !text.ends_with("{{") && !ends_operand(text)
}

/// `[a:b` at the end, with its colons, as `.__slice__(a,b)`; what is left out is none.
fn slice_call(at: usize, colons: &[usize], out: &mut String) {
    let slice = out.split_off(at);
    let mut parts = Vec::new();
    let mut start = 1;
    for colon in colons.iter().map(|colon| colon - at).chain([slice.len()]) {
        let part = slice[start..colon].trim();
        parts.push(if part.is_empty() { "none" } else { part });
        start = colon + 1;
    }
    out.push_str(&format!(".{SLICE_METHOD}({})", parts.join(",")));
}

#[cfg(test)]
mod tests {
    use super::translate;

    #[test]
    fn generation_blocks_become_scopes() {
        let source = "{%- generation -%}a{%+ endgeneration %}{% generation_x %}";
        assert_eq!(translate(source).unwrap(), "{%- with -%}a{%+ endwith %}{% generation_x %}");
    }

    #[test]
    fn slices_become_calls() {
        let cases = [
            ("{{ m[::-1] }}", "{{ m.__slice__(none,none,-1) }}"),
            ("{% for x in m[1:] %}", "{% for x in m.__slice__(1,none) %}"),
            ("{{ m[a[1:2]|length : -1][0] }}", "{{ m.__slice__(a.__slice__(1,2)|length,-1)[0] }}"),
            ("{{ {'a': [1, 2]}['a'] }}", "{{ {'a': [1, 2]}['a'] }}"),
            ("{{ f({'a': {'b': 1}}) }}x[:]", "{{ f({'a': {'b': 1}}) }}x[:]"),
            ("{{ '%s' % 'a}}' ~ x }}", "{{ '%s'|__made__ % 'a}}'|__made__ ~ x }}"),
            ("{{ '\\U0001F600\\\\\\x27' }}", "{{ '\u{1f600}\\\\\\'' }}"),
            ("{{ 1 == true and x not in [1] }}", "{{ 1|__made__ == true and x not in [1] }}"),
            ("{% for x in y %}{% if 'a' in x %}", "{% for x in y %}{% if 'a'|__made__ in x %}"),
            ("{% for (a, b) in 'x' in y %}", "{% for (a, b) in 'x'|__made__ in y %}"),
            ("{% set x='a' %}{{ f(a='b') }}", "{% set x='a' %}{{ f(a='b') }}"),
            ("{{ '[1:2] \\' }}' ~ m[:2] }}", "{{ '[1:2] \\' }}'|__made__ ~ m.__slice__(none,2) }}"),
            ("{{- a+-b -}}{{ f(*c, **d) }}", "{{- a|__made__ +-b -}}{{ f(*c, **d) }}"),
            ("{{ 1.5e-7 - 2E+3 }}", "{{ 1.5e-7|__made__ - 2E+3 }}"),
            ("{% if not -1 // (2) %}", "{% if not -1|__made__ // (2) %}"),
            (
                "{%+ set x = [1] * y['z'] ** 2 +%}",
                "{%+ set x = [1]|__made__ * y['z']|__made__ ** 2 +%}",
            ),
        ];
        for (source, expected) in cases {
            assert_eq!(translate(source).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn comments_raw_blocks_and_text_stay() {
        let source = "{# {% generation %} x[1:] #}{%- raw -%}{% generation %}{{ x[1:] }}{%- endraw %}\
                      x[1:] {% generation";
        let expected = source.replace("x[1:] {% generation", "x[1:] {% with");
        assert_eq!(translate(source).as_deref(), Ok(expected.as_str()));
        assert_eq!(translate("a\r\nb\rc").unwrap(), "a\nb\nc");
    }

    #[test]
    fn expressions_have_a_limit_of_operators() {
        let expression = |operator: &str, times| format!("{{{{ x{} }}}}", operator.repeat(times));
        for operator in [" and x", " or x", "~x", "*x"] {
            assert!(translate(&expression(operator, 1000)).is_ok(), "{operator}");
            assert!(translate(&expression(operator, 1001)).is_err(), "{operator}");
        }
        assert!(translate(&expression(".android", 1001)).is_ok());
        for step in [".a", "|f", "[0]", " is a", " if x else x"] {
            assert!(translate(&expression(step, 2001)).is_err(), "{step}");
        }
        assert!(translate(&format!("{{{{ {}x }}}}", "not ".repeat(2001))).is_err());
        let elif = |times| format!("{{% if a %}}{}{{% endif %}}", "{% elif b %}".repeat(times));
        assert!(translate(&elif(1000)).is_ok() && translate(&elif(1001)).is_err());
        assert!(translate(&expression("", 1).repeat(1001)).is_ok());
    }
}
