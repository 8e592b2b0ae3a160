//! `Difference`: where two rows part, as data.

use super::rows::{Answer, OutputRow};

/// The same thing of both rows, where it differs.
pub type Pair<T> = Option<(T, T)>;

/// Where two rows part. At least one of the fields is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// They are not the same row.
    pub ids: Pair<String>,
    /// An error and an answer (None), or two errors.
    pub errors: Pair<Option<String>>,
    /// They have not the same number of completions.
    pub num_outputs: Pair<usize>,
    /// The first completion that differs, counted from 0.
    pub output: usize,
    /// Its first differing token.
    pub token: Option<TokenDifference>,
    /// The first differing character of its text.
    pub text: Option<TextDifference>,
    /// Why it ended.
    pub finish_reasons: Pair<String>,
}

/// The first differing token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenDifference {
    /// Counted from 0.
    pub index: usize,
    /// Its ids. None: there is none any more.
    pub ids: (Option<i64>, Option<i64>),
}

/// The first differing character.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextDifference {
    /// Characters before it.
    pub character: usize,
    /// Bytes before it.
    pub byte: usize,
    /// The texts.
    pub texts: (String, String),
}

impl Difference {
    /// Compares two rows; None if their answers are equal.
    pub fn of(a: &OutputRow, b: &OutputRow) -> Option<Self> {
        let mut found = Self::default();
        if let (Some(one), Some(other)) = (&a.id, &b.id)
            && one != other
        {
            found.ids = Some((one.clone(), other.clone()));
        }
        if a.error != b.error {
            found.errors = Some((a.error.clone(), b.error.clone()));
        } else {
            let answers = a.answers.iter().zip(&b.answers).enumerate();
            let parting = answers.into_iter().find(|(_, (one, other))| found.compare(one, other));
            found.output = parting.map_or(0, |(index, _)| index);
            let numbers = (a.answers.len(), b.answers.len());
            found.num_outputs = (numbers.0 != numbers.1).then_some(numbers);
        }
        let is_equal = found == Self::default();
        (!is_equal).then_some(found)
    }

    /// Tells whether two completions differ.
    fn compare(&mut self, a: &Answer, b: &Answer) -> bool {
        if let (Some(one), Some(other)) = (&a.token_ids, &b.token_ids) {
            self.token = token_difference(one, other);
        }
        self.text = text_difference(&a.text, &b.text);
        if let (Some(one), Some(other)) = (&a.finish_reason, &b.finish_reason)
            && one != other
        {
            self.finish_reasons = Some((one.clone(), other.clone()));
        }
        self.token.is_some() || self.text.is_some() || self.finish_reasons.is_some()
    }
}

fn token_difference(a: &[i64], b: &[i64]) -> Option<TokenDifference> {
    let index = a.iter().zip(b).position(|(one, other)| one != other);
    let index = index.or_else(|| (a.len() != b.len()).then_some(a.len().min(b.len())))?;
    Some(TokenDifference { index, ids: (a.get(index).copied(), b.get(index).copied()) })
}

fn text_difference(a: &str, b: &str) -> Option<TextDifference> {
    if a == b {
        return None;
    }
    let common = a.chars().zip(b.chars()).take_while(|(one, other)| one == other);
    let (character, byte) =
        common.fold((0, 0), |(chars, bytes), (c, _)| (chars + 1, bytes + c.len_utf8()));
    Some(TextDifference { character, byte, texts: (a.to_owned(), b.to_owned()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(text: &str, token_ids: Option<&[i64]>) -> OutputRow {
        let answer = Answer {
            text: text.to_owned(),
            token_ids: token_ids.map(<[_]>::to_vec),
            finish_reason: None,
        };
        OutputRow { line: 1, id: None, error: None, answers: vec![answer] }
    }

    #[test]
    fn the_first_differing_token_and_character() {
        let difference = |a: &OutputRow, b: &OutputRow| Difference::of(a, b).expect("they differ");
        let found = difference(&row("añb", Some(&[1, 2, 3])), &row("añcd", Some(&[1, 2, 4, 5])));
        assert_eq!(found.token, Some(TokenDifference { index: 2, ids: (Some(3), Some(4)) }));
        let text = found.text.expect("texts differ");
        assert_eq!((text.character, text.byte), (2, 3));
        // One is the beginning of the other.
        let found = difference(&row("ab", Some(&[1])), &row("a", Some(&[1, 2])));
        assert_eq!(found.token, Some(TokenDifference { index: 1, ids: (None, Some(2)) }));
        assert_eq!(found.text.expect("texts differ").character, 1);
        // Other tokens, the same text.
        let found = difference(&row("ab", Some(&[1, 2])), &row("ab", Some(&[3])));
        assert_eq!((found.token.expect("tokens differ").index, found.text), (0, None));
        // Without tokens on one side the text decides.
        assert_eq!(Difference::of(&row("ab", Some(&[1, 2])), &row("ab", None)), None);
    }

    #[test]
    fn errors_completions_reasons_and_ids() {
        let plain = row("a", None);
        let failed =
            OutputRow { error: Some("e".to_owned()), answers: Vec::new(), ..plain.clone() };
        let found = Difference::of(&plain, &failed).expect("an error and an answer");
        let errors = Some((None, Some("e".to_owned())));
        assert_eq!(found, Difference { errors, ..Difference::default() });
        assert_eq!(Difference::of(&failed, &failed), None);
        let mut two = plain.clone();
        two.answers.push(Answer::default());
        let found = Difference::of(&two, &plain).expect("two and one");
        assert_eq!(found, Difference { num_outputs: Some((2, 1)), ..Difference::default() });
        let mut stopped = two.clone();
        two.answers[1].finish_reason = Some("length".to_owned());
        assert_eq!(Difference::of(&two, &stopped), None, "one does not say it");
        stopped.answers[1].finish_reason = Some("stop".to_owned());
        let found = Difference::of(&two, &stopped).expect("other reasons");
        let reasons = Some(("length".to_owned(), "stop".to_owned()));
        assert_eq!((found.output, found.finish_reasons), (1, reasons));
        let known = |id: &str| OutputRow { id: Some(id.to_owned()), ..plain.clone() };
        let found = Difference::of(&known("1"), &known("2")).expect("other rows");
        assert_eq!(found.ids, Some(("1".to_owned(), "2".to_owned())));
        assert_eq!(Difference::of(&known("1"), &plain), None);
    }
}
