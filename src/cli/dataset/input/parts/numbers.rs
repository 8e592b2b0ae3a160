//! `PageNumbers`: which of a file's pages, as `--pages` has them.

/// Pages by their numbers from 1; none are all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageNumbers(Vec<(u32, u32)>);

impl PageNumbers {
    /// Of a text such as `1-3,7,10-`.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` names no pages: write them as in 1-3,7,10-");
        let number = |text: &str| text.trim().parse::<u32>().ok().filter(|page| *page > 0);
        let range = |item: &str| match item.split_once('-') {
            None => number(item).map(|page| (page, page)),
            Some((first, last)) if last.trim().is_empty() => Some((number(first)?, u32::MAX)),
            Some((first, last)) => {
                let (first, last) = (number(first)?, number(last)?);
                (first <= last).then_some((first, last))
            }
        };
        let ranges: Option<Vec<_>> = text.split(',').map(range).collect();
        ranges.map(Self).ok_or_else(wrong)
    }

    /// Whether a page is one of them.
    pub fn has(&self, page: u32) -> bool {
        let is_in = |(first, last): &(u32, u32)| (*first..=*last).contains(&page);
        self.0.is_empty() || self.0.iter().any(is_in)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_numbers_and_ranges() {
        let all = |text: &str| {
            let numbers = PageNumbers::parse(text).unwrap();
            (1..=12).filter(|page| numbers.has(*page)).collect::<Vec<_>>()
        };
        assert_eq!(all("1-3,7,10-"), [1, 2, 3, 7, 10, 11, 12]);
        assert_eq!(all(" 2 , 1 "), [1, 2], "pages keep the order of the file");
        assert_eq!(all("12-"), [12]);
        assert_eq!((1..=9).filter(|page| PageNumbers::default().has(*page)).count(), 9);
        for wrong in ["", "0", "-3", "3-1", "1,,2", "a", "1-2-3", "4294967296"] {
            assert!(PageNumbers::parse(wrong).is_err(), "{wrong}");
        }
    }
}
