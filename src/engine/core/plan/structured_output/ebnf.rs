//! Grammars in EBNF as of GBNF and xgrammar (`root ::= "a" [0-9]+`), written as Lark.
//!
//! A rule that is not recursive and refers to none that is becomes one terminal, which the lexer
//! matches: greedily, as llguidance's own converter has it. The others become rules.

use std::collections::HashMap;

/// Nested parentheses.
const MAX_DEPTH: usize = 64;

/// Whether a grammar is in EBNF: only there `::=` defines a rule.
pub(super) fn is_ebnf(grammar: &str) -> bool {
    grammar.contains("::=")
}

/// The same grammar as Lark.
///
/// # Errors
/// What is wrong, and on which line.
pub(super) fn to_lark(grammar: &str) -> Result<String, String> {
    let tokens = tokens(grammar)?;
    let mut parser = Parser { tokens: &tokens, at: 0, names: HashMap::new(), rules: Vec::new() };
    parser.rules()?;
    let Parser { names, rules, .. } = parser;
    let root = *names.get("root").ok_or("there is no rule 'root'")?;
    let body = |Rule { name, line, body }: Rule| {
        body.ok_or_else(|| format!("line {line}: rule '{name}' is not defined"))
    };
    let bodies: Vec<Node> = rules.into_iter().map(body).collect::<Result<_, _>>()?;
    let is_terminal = terminals(&bodies);
    let name = |index: usize| match is_terminal[index] {
        true => format!("T{index}"),
        false => format!("r{index}"),
    };
    let mut lark = format!("start: {}\n", name(root));
    for (index, body) in bodies.iter().enumerate() {
        lark.push_str(&format!("{}: {}\n", name(index), body.show(&name, false)));
    }
    Ok(lark)
}

/// What a rule consists of.
enum Node {
    Literal(String),
    /// A regular expression of one character.
    Class(String),
    Rule(usize),
    Sequence(Vec<Node>),
    Choice(Vec<Node>),
    Repeat(Box<Node>, u32, Option<u32>),
}

impl Node {
    fn show(&self, name: &impl Fn(usize) -> String, inside: bool) -> String {
        let join = |nodes: &[Node], between: &str| {
            let shown: Vec<String> = nodes.iter().map(|node| node.show(name, true)).collect();
            let joined = shown.join(between);
            if inside { format!("({joined})") } else { joined }
        };
        match self {
            Node::Literal(text) => serde_json::Value::from(text.as_str()).to_string(),
            Node::Class(regex) => format!("/{regex}/"),
            Node::Rule(index) => name(*index),
            Node::Sequence(nodes) if nodes.is_empty() => "\"\"".to_owned(),
            Node::Sequence(nodes) => join(nodes, " "),
            Node::Choice(nodes) => join(nodes, " | "),
            Node::Repeat(node, least, most) => {
                let most = most.map_or(String::new(), |most| most.to_string());
                format!("({}){{{least},{most}}}", node.show(name, true))
            }
        }
    }

    fn each_rule(&self, visit: &mut impl FnMut(usize)) {
        match self {
            Node::Literal(_) | Node::Class(_) => {}
            Node::Rule(index) => visit(*index),
            Node::Sequence(nodes) | Node::Choice(nodes) => {
                nodes.iter().for_each(|node| node.each_rule(visit));
            }
            Node::Repeat(node, ..) => node.each_rule(visit),
        }
    }
}

/// Which rules reach no recursive one: those whose references are all terminals, again and again.
fn terminals(bodies: &[Node]) -> Vec<bool> {
    let mut is_terminal = vec![false; bodies.len()];
    loop {
        let mut changed = false;
        for (index, body) in bodies.iter().enumerate() {
            let mut all = true;
            body.each_rule(&mut |other| all &= is_terminal[other]);
            changed |= all && !is_terminal[index];
            is_terminal[index] |= all;
        }
        if !changed {
            return is_terminal;
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Name(String),
    /// `::=`
    Defines,
    Literal(String),
    Class(String),
    Times(u32, Option<u32>),
    /// `|`, `(`, `)`
    Sign(char),
}

/// The tokens, each with its line.
fn tokens(text: &str) -> Result<Vec<(usize, Token)>, String> {
    let mut scanner = Scanner { rest: text, line: 1 };
    let mut tokens = Vec::new();
    while let Some(char) = scanner.peek() {
        let line = scanner.line;
        let token = match char {
            _ if char.is_whitespace() => {
                scanner.next();
                continue;
            }
            '#' => {
                while scanner.peek().is_some_and(|char| char != '\n') {
                    scanner.next();
                }
                continue;
            }
            '"' => Token::Literal(scanner.literal()?),
            '[' => Token::Class(scanner.class()?),
            '{' => scanner.times()?,
            '.' => scanner.sign(Token::Class("(.|\\n)".to_owned())),
            '*' => scanner.sign(Token::Times(0, None)),
            '+' => scanner.sign(Token::Times(1, None)),
            '?' => scanner.sign(Token::Times(0, Some(1))),
            '|' | '(' | ')' => scanner.sign(Token::Sign(char)),
            ':' if scanner.rest.starts_with("::=") => {
                scanner.rest = &scanner.rest[3..];
                Token::Defines
            }
            _ if is_of_name(char) => Token::Name(scanner.name()),
            other => return Err(format!("line {line}: unexpected {other:?}")),
        };
        tokens.push((line, token));
    }
    Ok(tokens)
}

fn is_of_name(char: char) -> bool {
    char.is_ascii_alphanumeric() || char == '_' || char == '-'
}

struct Scanner<'a> {
    rest: &'a str,
    line: usize,
}

impl Scanner<'_> {
    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let char = self.peek()?;
        self.line += usize::from(char == '\n');
        self.rest = &self.rest[char.len_utf8()..];
        Some(char)
    }

    fn sign(&mut self, token: Token) -> Token {
        self.next();
        token
    }

    fn name(&mut self) -> String {
        let end = self.rest.find(|char| !is_of_name(char)).unwrap_or(self.rest.len());
        let name = self.rest[..end].to_owned();
        self.rest = &self.rest[end..];
        name
    }

    fn literal(&mut self) -> Result<String, String> {
        let line = self.line;
        self.next();
        let mut text = String::new();
        loop {
            match self.next() {
                None | Some('\n') => return Err(format!("line {line}: a text without its end")),
                Some('"') => return Ok(text),
                Some('\\') => text.push(self.escaped()?),
                Some(char) => text.push(char),
            }
        }
    }

    /// A set of characters as a regular expression.
    fn class(&mut self) -> Result<String, String> {
        let line = self.line;
        self.next();
        let mut regex = String::from("[");
        if self.peek() == Some('^') {
            self.next();
            regex.push('^');
        }
        let mut is_empty = true;
        loop {
            let char = match self.next() {
                None | Some('\n') => return Err(format!("line {line}: a set without its end")),
                Some(']') if is_empty => return Err(format!("line {line}: an empty set")),
                Some(']') => {
                    regex.push(']');
                    return Ok(regex);
                }
                Some('-') if !is_empty && self.peek() != Some(']') => {
                    regex.push('-');
                    continue;
                }
                Some('\\') => self.escaped()?,
                Some(char) => char,
            };
            is_empty = false;
            match char {
                _ if char.is_ascii_alphanumeric() || !char.is_ascii() => regex.push(char),
                _ => regex.push_str(&format!("\\x{:02X}", u32::from(char))),
            }
        }
    }

    /// What follows a backslash.
    fn escaped(&mut self) -> Result<char, String> {
        let line = self.line;
        let char = self.next().ok_or_else(|| format!("line {line}: a backslash at the end"))?;
        let num_digits = match char {
            'n' => return Ok('\n'),
            't' => return Ok('\t'),
            'r' => return Ok('\r'),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ if char.is_ascii_alphanumeric() => {
                return Err(format!("line {line}: an unknown escape '\\{char}'"));
            }
            _ => return Ok(char),
        };
        let wrong = || format!("line {line}: '\\{char}' needs {num_digits} hexadecimal digits");
        let digits = self.rest.get(..num_digits).ok_or_else(wrong)?;
        let code = u32::from_str_radix(digits, 16).map_err(|_| wrong())?;
        self.rest = &self.rest[num_digits..];
        char::from_u32(code).ok_or_else(|| format!("line {line}: '{digits}' is no character"))
    }

    /// `{m}`, `{m,}`, `{m,n}`
    fn times(&mut self) -> Result<Token, String> {
        let line = self.line;
        let wrong = || format!("line {line}: expected a count such as {{2}} or {{1,3}}");
        let end = self.rest.find('}').ok_or_else(wrong)?;
        let inside = &self.rest[1..end];
        self.rest = &self.rest[end + 1..];
        let number = |text: &str| text.trim().parse::<u32>().map_err(|_| wrong());
        let (least, most) = match inside.split_once(',') {
            None => (number(inside)?, Some(number(inside)?)),
            Some((least, "")) => (number(least)?, None),
            Some((least, most)) => (number(least)?, Some(number(most)?)),
        };
        match most {
            Some(most) if most < least => Err(wrong()),
            _ => Ok(Token::Times(least, most)),
        }
    }
}

struct Rule {
    name: String,
    /// Where it is first named.
    line: usize,
    body: Option<Node>,
}

struct Parser<'a> {
    tokens: &'a [(usize, Token)],
    at: usize,
    names: HashMap<String, usize>,
    rules: Vec<Rule>,
}

impl Parser<'_> {
    fn rules(&mut self) -> Result<(), String> {
        while let Some((line, token)) = self.tokens.get(self.at) {
            let Token::Name(name) = token else {
                return Err(format!("line {line}: expected the name of a rule"));
            };
            if !self.begins_rule() {
                return Err(format!("line {line}: expected '::=' after '{name}'"));
            }
            let index = self.index(name, *line);
            self.at += 2;
            let body = self.choice(0)?;
            if self.rules[index].body.replace(body).is_some() {
                return Err(format!("line {line}: rule '{name}' is defined twice"));
            }
        }
        Ok(())
    }

    fn begins_rule(&self) -> bool {
        matches!(
            self.tokens.get(self.at..self.at + 2),
            Some([(_, Token::Name(_)), (_, Token::Defines)])
        )
    }

    fn index(&mut self, name: &str, line: usize) -> usize {
        let next = self.rules.len();
        let index = *self.names.entry(name.to_owned()).or_insert(next);
        if index == next {
            self.rules.push(Rule { name: name.to_owned(), line, body: None });
        }
        index
    }

    fn choice(&mut self, depth: usize) -> Result<Node, String> {
        let mut options = vec![self.sequence(depth)?];
        while let Some((_, Token::Sign('|'))) = self.tokens.get(self.at) {
            self.at += 1;
            options.push(self.sequence(depth)?);
        }
        Ok(match options.len() {
            1 => options.remove(0),
            _ => Node::Choice(options),
        })
    }

    fn sequence(&mut self, depth: usize) -> Result<Node, String> {
        let mut nodes: Vec<Node> = Vec::new();
        while let Some((line, token)) = self.tokens.get(self.at) {
            let node = match token {
                Token::Name(_) if self.begins_rule() => break,
                Token::Name(name) => Node::Rule(self.index(name, *line)),
                Token::Literal(text) => Node::Literal(text.clone()),
                Token::Class(regex) => Node::Class(regex.clone()),
                Token::Times(least, most) => {
                    let node = nodes.pop().ok_or(format!("line {line}: nothing to repeat"))?;
                    self.at += 1;
                    nodes.push(Node::Repeat(Box::new(node), *least, *most));
                    continue;
                }
                Token::Sign('(') if depth < MAX_DEPTH => {
                    self.at += 1;
                    let inner = self.choice(depth + 1)?;
                    let Some((_, Token::Sign(')'))) = self.tokens.get(self.at) else {
                        return Err(format!("line {line}: a parenthesis without its end"));
                    };
                    inner
                }
                Token::Sign('(') => {
                    return Err(format!("line {line}: more than {MAX_DEPTH} parentheses"));
                }
                Token::Sign(_) => break,
                Token::Defines => return Err(format!("line {line}: '::=' without a name")),
            };
            self.at += 1;
            nodes.push(node);
        }
        let closes_nothing =
            depth == 0 && matches!(self.tokens.get(self.at), Some((_, Token::Sign(')'))));
        if closes_nothing {
            let line = self.tokens[self.at].0;
            return Err(format!("line {line}: a parenthesis without its beginning"));
        }
        Ok(match nodes.len() {
            1 => nodes.remove(0),
            _ => Node::Sequence(nodes),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_become_rules_and_terminals() {
        let grammar = "# a list\nroot ::= \"[\" (item (\", \" item)*)? \"]\"\n\
                       item ::= word | root\nword ::= [a-z\\]]+ | \"\\u00e9\\n\"{2,3}";
        let expected = "start: r0\n\
            r0: \"[\" ((r1 ((\", \" r1)){0,})){0,1} \"]\"\n\
            r1: T2 | r0\n\
            T2: (/[a-z\\x5D]/){1,} | (\"é\\n\"){2,3}\n";
        assert_eq!(to_lark(grammar).unwrap(), expected);
        assert!(is_ebnf(grammar) && !is_ebnf("start: \"a\""));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let cases = [
            ("root ::=\n a b c", "line 2: rule 'a' is not defined"),
            ("x ::= \"a\"", "there is no rule 'root'"),
            ("root ::= \"a\nb\"", "line 1: a text without its end"),
            ("root ::= \"a\"\nroot ::= \"b\"", "line 2: rule 'root' is defined twice"),
            ("root ::= (\"a\"", "line 1: a parenthesis without its end"),
            ("root ::= \"a\")", "line 1: a parenthesis without its beginning"),
            ("root ::= * \"a\"", "line 1: nothing to repeat"),
            ("root ::= [a", "line 1: a set without its end"),
            ("root ::= \"\\q\"", "line 1: an unknown escape '\\q'"),
            ("root ::= \"a\"{3,1}", "line 1: expected a count"),
            ("root ::= \"\\xZZ\"", "line 1: '\\x' needs 2 hexadecimal digits"),
            ("root \"a\" ::= b", "line 1: expected '::=' after 'root'"),
        ];
        for (grammar, message) in cases {
            assert!(to_lark(grammar).unwrap_err().starts_with(message), "{grammar}");
        }
        let deep = format!("root ::= {}", "(".repeat(MAX_DEPTH + 2));
        assert_eq!(to_lark(&deep).unwrap_err(), "line 1: more than 64 parentheses");
    }
}
