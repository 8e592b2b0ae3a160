//! The likeliest of several choices, by lm-evaluation-harness's three measures.

use super::super::criterion::Scored;

/// Picks of the choices.
#[derive(Debug, PartialEq)]
pub struct Picks {
    /// By log-likelihood.
    pub plain: usize,
    /// By log-likelihood per character.
    pub by_chars: usize,
    /// By log-likelihood per byte of UTF-8.
    pub by_bytes: usize,
}

/// Which choice is the likeliest; of equal ones the first. A choice without characters is the
/// unlikeliest where lengths count.
pub fn picks(choices: &[String], logprobs: &[f64]) -> Picks {
    let per = |length: &dyn Fn(&String) -> usize| {
        let measure = |(choice, logprob): (&String, &f64)| match length(choice) {
            0 => f64::NEG_INFINITY,
            length => logprob / length as f64,
        };
        first_best(&choices.iter().zip(logprobs).map(measure).collect::<Vec<_>>())
    };
    Picks {
        plain: first_best(logprobs),
        by_chars: per(&|choice| choice.chars().count()),
        by_bytes: per(&String::len),
    }
}

fn first_best(values: &[f64]) -> usize {
    let better = |best: usize, at: usize| if values[at] > values[best] { at } else { best };
    (0..values.len()).reduce(better).unwrap_or(0)
}

/// The score of a row: right or wrong by each measure. `right`: places that are right.
pub fn score(choices: &[String], right: &[usize], logprobs: &[f64]) -> Scored {
    let Picks { plain, by_chars, by_bytes } = picks(choices, logprobs);
    let is_right = |pick: usize| f64::from(u8::from(right.contains(&pick)));
    Scored {
        score: is_right(plain),
        extracted: Some(choices.get(plain).cloned()),
        parts: vec![
            ("acc".to_owned(), is_right(plain)),
            ("acc_norm".to_owned(), is_right(by_chars)),
            ("acc_bytes".to_owned(), is_right(by_bytes)),
        ],
        ..Scored::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picked(choices: &[&str], logprobs: &[f64]) -> [usize; 3] {
        let choices: Vec<String> = choices.iter().map(|choice| (*choice).to_owned()).collect();
        let Picks { plain, by_chars, by_bytes } = picks(&choices, logprobs);
        [plain, by_chars, by_bytes]
    }

    #[test]
    fn lengths_are_characters_and_bytes_and_ties_go_to_the_first() {
        assert_eq!(picked(&["no", "a longer one"], &[-4.0, -6.0]), [0, 1, 1]);
        // Two characters of six bytes against three of three.
        assert_eq!(picked(&["日本", "abc"], &[-6.0, -6.0]), [0, 1, 0]);
        assert_eq!(picked(&["ab", "cd"], &[-1.0, -1.0]), [0, 0, 0]);
        assert_eq!(picked(&["", "a"], &[-0.5, -1.0]), [0, 1, 1]);
        assert_eq!(picked(&["a", "b"], &[f64::NEG_INFINITY, -9.0]), [1, 1, 1]);
    }

    #[test]
    fn several_choices_may_be_right() {
        let choices = ["a".to_owned(), "bb".to_owned(), "c".to_owned()];
        let scored = score(&choices, &[1, 2], &[-3.0, -2.0, -1.5]);
        assert_eq!(scored.extracted, Some(Some("c".to_owned())));
        let names = ["acc", "acc_norm", "acc_bytes"].map(|name| (name.to_owned(), 1.0));
        assert_eq!(scored.parts, names);
        assert_eq!(score(&choices, &[0], &[-3.0, -2.0, -1.5]).score, 0.0);
    }
}
