//! Python's classes of characters: `str.isdigit` and the like, and `str.casefold`.

use unicode_properties::{
    GeneralCategory as Category, GeneralCategoryGroup, UnicodeGeneralCategory,
};

/// `str.isalpha` of a character: a letter, not any mark or number that Unicode calls alphabetic.
pub(crate) fn is_alpha(c: char) -> bool {
    c.is_ascii_alphabetic()
        || (!c.is_ascii() && c.general_category_group() == GeneralCategoryGroup::Letter)
}

/// `str.isdecimal` of a character.
pub(crate) fn is_decimal(c: char) -> bool {
    c.is_ascii_digit() || (!c.is_ascii() && c.general_category() == Category::DecimalNumber)
}

/// The value of a decimal digit of any script.
pub(crate) fn decimal_value(c: char) -> Option<u32> {
    if c.is_ascii() {
        return c.to_digit(10);
    }
    // Digits of a script follow each other.
    let is_before = |n: &u32| char::from_u32(c as u32 - n).is_some_and(is_decimal);
    let run = (1..50).take_while(is_before).count() as u32;
    is_decimal(c).then_some(run % 10)
}

/// `str.isdigit` of a character: decimals, and digits that are raised, lowered or circled.
pub(crate) fn is_digit(c: char) -> bool {
    is_decimal(c) || is_in(c, DIGITS)
}

/// `str.isnumeric` of a character: all numbers, those that are ideographs included.
pub(crate) fn is_numeric(c: char) -> bool {
    c.is_ascii_digit()
        || (!c.is_ascii()
            && (c.general_category_group() == GeneralCategoryGroup::Number || is_in(c, IDEOGRAPHS)))
}

/// `str.isalnum` of a character.
pub(crate) fn is_alnum(c: char) -> bool {
    is_alpha(c) || is_numeric(c)
}

/// `str.isprintable` of a character.
pub(crate) fn is_printable(c: char) -> bool {
    use GeneralCategoryGroup::{Other, Separator};
    match c.is_ascii() {
        true => (' '..='~').contains(&c),
        false => !matches!(c.general_category_group(), Other | Separator),
    }
}

fn is_in(c: char, ranges: &[(u32, u32)]) -> bool {
    let c = c as u32;
    let next = ranges.partition_point(|(_, last)| *last < c);
    ranges.get(next).is_some_and(|(first, _)| *first <= c)
}

/// `str.casefold`.
pub(crate) fn casefold(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            // Cherokee folds to capitals.
            '\u{13a0}'..='\u{13f5}' => out.push(c),
            '\u{13f8}'..='\u{13fd}' => out.extend(char::from_u32(c as u32 - 8)),
            '\u{ab70}'..='\u{abbf}' => out.extend(char::from_u32(c as u32 - 0xab70 + 0x13a0)),
            _ => match FOLDS.binary_search_by_key(&c, |(from, _)| *from) {
                Ok(at) => out.push_str(FOLDS[at].1),
                Err(_) => out.extend(c.to_lowercase()),
            },
        }
    }
    out
}

/// Digits that are not decimals.
#[rustfmt::skip]
const DIGITS: &[(u32, u32)] = &[
    (0xb2, 0xb3), (0xb9, 0xb9), (0x1369, 0x1371), (0x19da, 0x19da), (0x2070, 0x2070),
    (0x2074, 0x2079), (0x2080, 0x2089), (0x2460, 0x2468), (0x2474, 0x247c), (0x2488, 0x2490),
    (0x24ea, 0x24ea), (0x24f5, 0x24fd), (0x24ff, 0x24ff), (0x2776, 0x277e), (0x2780, 0x2788),
    (0x278a, 0x2792), (0x10a40, 0x10a43), (0x10e60, 0x10e68), (0x11052, 0x1105a),
    (0x1f100, 0x1f10a),
];

/// Letters that are numbers.
#[rustfmt::skip]
const IDEOGRAPHS: &[(u32, u32)] = &[
    (0x3405, 0x3405), (0x3483, 0x3483), (0x382a, 0x382a), (0x3b4d, 0x3b4d), (0x4e00, 0x4e00),
    (0x4e03, 0x4e03), (0x4e07, 0x4e07), (0x4e09, 0x4e09), (0x4e5d, 0x4e5d), (0x4e8c, 0x4e8c),
    (0x4e94, 0x4e94), (0x4e96, 0x4e96), (0x4ebf, 0x4ec0), (0x4edf, 0x4edf), (0x4ee8, 0x4ee8),
    (0x4f0d, 0x4f0d), (0x4f70, 0x4f70), (0x5104, 0x5104), (0x5146, 0x5146), (0x5169, 0x5169),
    (0x516b, 0x516b), (0x516d, 0x516d), (0x5341, 0x5341), (0x5343, 0x5345), (0x534c, 0x534c),
    (0x53c1, 0x53c4), (0x56db, 0x56db), (0x58f1, 0x58f1), (0x58f9, 0x58f9), (0x5e7a, 0x5e7a),
    (0x5efe, 0x5eff), (0x5f0c, 0x5f0e), (0x5f10, 0x5f10), (0x62fe, 0x62fe), (0x634c, 0x634c),
    (0x67d2, 0x67d2), (0x6f06, 0x6f06), (0x7396, 0x7396), (0x767e, 0x767e), (0x8086, 0x8086),
    (0x842c, 0x842c), (0x8cae, 0x8cae), (0x8cb3, 0x8cb3), (0x8d30, 0x8d30), (0x9621, 0x9621),
    (0x9646, 0x9646), (0x964c, 0x964c), (0x9678, 0x9678), (0x96f6, 0x96f6), (0xf96b, 0xf96b),
    (0xf973, 0xf973), (0xf978, 0xf978), (0xf9b2, 0xf9b2), (0xf9d1, 0xf9d1), (0xf9d3, 0xf9d3),
    (0xf9fd, 0xf9fd), (0x20001, 0x20001), (0x20064, 0x20064), (0x200e2, 0x200e2),
    (0x20121, 0x20121), (0x2092a, 0x2092a), (0x20983, 0x20983), (0x2098c, 0x2098c),
    (0x2099c, 0x2099c), (0x20aea, 0x20aea), (0x20afd, 0x20afd), (0x20b19, 0x20b19),
    (0x22390, 0x22390), (0x22998, 0x22998), (0x23b1b, 0x23b1b), (0x2626d, 0x2626d),
    (0x2f890, 0x2f890),
];

/// Characters that fold to other than their small letters.
#[rustfmt::skip]
const FOLDS: &[(char, &str)] = &[
    ('\u{b5}', "\u{3bc}"), ('\u{df}', "\u{73}\u{73}"), ('\u{149}', "\u{2bc}\u{6e}"),
    ('\u{17f}', "\u{73}"), ('\u{1f0}', "\u{6a}\u{30c}"), ('\u{345}', "\u{3b9}"),
    ('\u{390}', "\u{3b9}\u{308}\u{301}"), ('\u{3b0}', "\u{3c5}\u{308}\u{301}"),
    ('\u{3c2}', "\u{3c3}"), ('\u{3d0}', "\u{3b2}"), ('\u{3d1}', "\u{3b8}"), ('\u{3d5}', "\u{3c6}"),
    ('\u{3d6}', "\u{3c0}"), ('\u{3f0}', "\u{3ba}"), ('\u{3f1}', "\u{3c1}"), ('\u{3f5}', "\u{3b5}"),
    ('\u{587}', "\u{565}\u{582}"), ('\u{1c80}', "\u{432}"), ('\u{1c81}', "\u{434}"),
    ('\u{1c82}', "\u{43e}"), ('\u{1c83}', "\u{441}"), ('\u{1c84}', "\u{442}"),
    ('\u{1c85}', "\u{442}"), ('\u{1c86}', "\u{44a}"), ('\u{1c87}', "\u{463}"),
    ('\u{1c88}', "\u{a64b}"), ('\u{1e96}', "\u{68}\u{331}"), ('\u{1e97}', "\u{74}\u{308}"),
    ('\u{1e98}', "\u{77}\u{30a}"), ('\u{1e99}', "\u{79}\u{30a}"), ('\u{1e9a}', "\u{61}\u{2be}"),
    ('\u{1e9b}', "\u{1e61}"), ('\u{1e9e}', "\u{73}\u{73}"), ('\u{1f50}', "\u{3c5}\u{313}"),
    ('\u{1f52}', "\u{3c5}\u{313}\u{300}"), ('\u{1f54}', "\u{3c5}\u{313}\u{301}"),
    ('\u{1f56}', "\u{3c5}\u{313}\u{342}"), ('\u{1f80}', "\u{1f00}\u{3b9}"),
    ('\u{1f81}', "\u{1f01}\u{3b9}"), ('\u{1f82}', "\u{1f02}\u{3b9}"),
    ('\u{1f83}', "\u{1f03}\u{3b9}"), ('\u{1f84}', "\u{1f04}\u{3b9}"),
    ('\u{1f85}', "\u{1f05}\u{3b9}"), ('\u{1f86}', "\u{1f06}\u{3b9}"),
    ('\u{1f87}', "\u{1f07}\u{3b9}"), ('\u{1f88}', "\u{1f00}\u{3b9}"),
    ('\u{1f89}', "\u{1f01}\u{3b9}"), ('\u{1f8a}', "\u{1f02}\u{3b9}"),
    ('\u{1f8b}', "\u{1f03}\u{3b9}"), ('\u{1f8c}', "\u{1f04}\u{3b9}"),
    ('\u{1f8d}', "\u{1f05}\u{3b9}"), ('\u{1f8e}', "\u{1f06}\u{3b9}"),
    ('\u{1f8f}', "\u{1f07}\u{3b9}"), ('\u{1f90}', "\u{1f20}\u{3b9}"),
    ('\u{1f91}', "\u{1f21}\u{3b9}"), ('\u{1f92}', "\u{1f22}\u{3b9}"),
    ('\u{1f93}', "\u{1f23}\u{3b9}"), ('\u{1f94}', "\u{1f24}\u{3b9}"),
    ('\u{1f95}', "\u{1f25}\u{3b9}"), ('\u{1f96}', "\u{1f26}\u{3b9}"),
    ('\u{1f97}', "\u{1f27}\u{3b9}"), ('\u{1f98}', "\u{1f20}\u{3b9}"),
    ('\u{1f99}', "\u{1f21}\u{3b9}"), ('\u{1f9a}', "\u{1f22}\u{3b9}"),
    ('\u{1f9b}', "\u{1f23}\u{3b9}"), ('\u{1f9c}', "\u{1f24}\u{3b9}"),
    ('\u{1f9d}', "\u{1f25}\u{3b9}"), ('\u{1f9e}', "\u{1f26}\u{3b9}"),
    ('\u{1f9f}', "\u{1f27}\u{3b9}"), ('\u{1fa0}', "\u{1f60}\u{3b9}"),
    ('\u{1fa1}', "\u{1f61}\u{3b9}"), ('\u{1fa2}', "\u{1f62}\u{3b9}"),
    ('\u{1fa3}', "\u{1f63}\u{3b9}"), ('\u{1fa4}', "\u{1f64}\u{3b9}"),
    ('\u{1fa5}', "\u{1f65}\u{3b9}"), ('\u{1fa6}', "\u{1f66}\u{3b9}"),
    ('\u{1fa7}', "\u{1f67}\u{3b9}"), ('\u{1fa8}', "\u{1f60}\u{3b9}"),
    ('\u{1fa9}', "\u{1f61}\u{3b9}"), ('\u{1faa}', "\u{1f62}\u{3b9}"),
    ('\u{1fab}', "\u{1f63}\u{3b9}"), ('\u{1fac}', "\u{1f64}\u{3b9}"),
    ('\u{1fad}', "\u{1f65}\u{3b9}"), ('\u{1fae}', "\u{1f66}\u{3b9}"),
    ('\u{1faf}', "\u{1f67}\u{3b9}"), ('\u{1fb2}', "\u{1f70}\u{3b9}"),
    ('\u{1fb3}', "\u{3b1}\u{3b9}"), ('\u{1fb4}', "\u{3ac}\u{3b9}"), ('\u{1fb6}', "\u{3b1}\u{342}"),
    ('\u{1fb7}', "\u{3b1}\u{342}\u{3b9}"), ('\u{1fbc}', "\u{3b1}\u{3b9}"), ('\u{1fbe}', "\u{3b9}"),
    ('\u{1fc2}', "\u{1f74}\u{3b9}"), ('\u{1fc3}', "\u{3b7}\u{3b9}"), ('\u{1fc4}', "\u{3ae}\u{3b9}"),
    ('\u{1fc6}', "\u{3b7}\u{342}"), ('\u{1fc7}', "\u{3b7}\u{342}\u{3b9}"),
    ('\u{1fcc}', "\u{3b7}\u{3b9}"), ('\u{1fd2}', "\u{3b9}\u{308}\u{300}"),
    ('\u{1fd3}', "\u{3b9}\u{308}\u{301}"), ('\u{1fd6}', "\u{3b9}\u{342}"),
    ('\u{1fd7}', "\u{3b9}\u{308}\u{342}"), ('\u{1fe2}', "\u{3c5}\u{308}\u{300}"),
    ('\u{1fe3}', "\u{3c5}\u{308}\u{301}"), ('\u{1fe4}', "\u{3c1}\u{313}"),
    ('\u{1fe6}', "\u{3c5}\u{342}"), ('\u{1fe7}', "\u{3c5}\u{308}\u{342}"),
    ('\u{1ff2}', "\u{1f7c}\u{3b9}"), ('\u{1ff3}', "\u{3c9}\u{3b9}"), ('\u{1ff4}', "\u{3ce}\u{3b9}"),
    ('\u{1ff6}', "\u{3c9}\u{342}"), ('\u{1ff7}', "\u{3c9}\u{342}\u{3b9}"),
    ('\u{1ffc}', "\u{3c9}\u{3b9}"), ('\u{fb00}', "\u{66}\u{66}"), ('\u{fb01}', "\u{66}\u{69}"),
    ('\u{fb02}', "\u{66}\u{6c}"), ('\u{fb03}', "\u{66}\u{66}\u{69}"),
    ('\u{fb04}', "\u{66}\u{66}\u{6c}"), ('\u{fb05}', "\u{73}\u{74}"), ('\u{fb06}', "\u{73}\u{74}"),
    ('\u{fb13}', "\u{574}\u{576}"), ('\u{fb14}', "\u{574}\u{565}"), ('\u{fb15}', "\u{574}\u{56b}"),
    ('\u{fb16}', "\u{57e}\u{576}"), ('\u{fb17}', "\u{574}\u{56d}"),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected values are Python's.
    #[test]
    fn classes_are_pythons() {
        for (c, [alpha, decimal, digit, numeric]) in [
            ('a', [true, false, false, false]),
            ('\u{93f}', [false; 4]),
            ('\u{2163}', [false, false, false, true]),
            ('\u{b2}', [false, false, true, true]),
            ('\u{bd}', [false, false, false, true]),
            ('\u{663}', [false, true, true, true]),
            ('\u{4e09}', [true, false, false, true]),
        ] {
            assert_eq!(
                [is_alpha(c), is_decimal(c), is_digit(c), is_numeric(c)],
                [alpha, decimal, digit, numeric],
                "{c}"
            );
        }
        assert_eq!(
            casefold("Stra\u{df}e \u{3a3}\u{3c2} \u{130} \u{13a0}\u{ab70}"),
            "strasse \u{3c3}\u{3c3} i\u{307} \u{13a0}\u{13a0}"
        );
        assert_eq!(decimal_value('\u{969}'), Some(3));
        assert_eq!(decimal_value('\u{1d7d9}'), Some(1));
    }
}
