//! VQA accuracy: how many of those who were asked about an image said the same.

use std::collections::HashMap;
use std::sync::LazyLock;

/// Others who have to say the same for a full score.
const ENOUGH: f64 = 3.0;

/// Punctuation that is left out, or that words are parted at.
const PUNCTUATION: &str = ";/[]\"{}()=+\\_-><@`,?!";

/// Periods that are left out at most: the published code gives a flag of regular expressions in the
/// place of their number.
const MAX_PERIODS: usize = 32;

const NUMBERS: [&str; 11] =
    ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"];

const ARTICLES: [&str; 3] = ["a", "an", "the"];

/// What contractions become that have lost an apostrophe, as VQA's code has them.
const CONTRACTIONS: &str = "\
    aint=ain't arent=aren't cant=can't couldve=could've couldnt=couldn't couldn'tve=couldn't've \
    couldnt've=couldn't've didnt=didn't doesnt=doesn't dont=don't hadnt=hadn't \
    hadnt've=hadn't've hadn'tve=hadn't've hasnt=hasn't havent=haven't hed=he'd hed've=he'd've \
    he'dve=he'd've hes=he's howd=how'd howll=how'll hows=how's isnt=isn't itd=it'd \
    itd've=it'd've it'dve=it'd've itll=it'll maam=ma'am mightnt=mightn't mightnt've=mightn't've \
    mightn'tve=mightn't've mightve=might've mustnt=mustn't mustve=must've neednt=needn't \
    notve=not've oclock=o'clock oughtnt=oughtn't ow's'at='ow's'at 'ows'at='ow's'at \
    'ow'sat='ow's'at shant=shan't shed've=she'd've she'dve=she'd've shouldve=should've \
    shouldnt=shouldn't shouldnt've=shouldn't've shouldn'tve=shouldn't've somebody'd=somebodyd \
    somebodyd've=somebody'd've somebody'dve=somebody'd've somebodyll=somebody'll \
    somebodys=somebody's someoned=someone'd someoned've=someone'd've someone'dve=someone'd've \
    someonell=someone'll someones=someone's somethingd=something'd somethingd've=something'd've \
    something'dve=something'd've somethingll=something'll thats=that's thered=there'd \
    thered've=there'd've there'dve=there'd've therere=there're theres=there's theyd=they'd \
    theyd've=they'd've they'dve=they'd've theyll=they'll theyre=they're theyve=they've \
    twas='twas wasnt=wasn't wed've=we'd've we'dve=we'd've weve=we've werent=weren't \
    whatll=what'll whatre=what're whats=what's whatve=what've whens=when's whered=where'd \
    wheres=where's whereve=where've whod=who'd whod've=who'd've who'dve=who'd've wholl=who'll \
    whos=who's whove=who've whyll=why'll whyre=why're whys=why's wont=won't wouldve=would've \
    wouldnt=wouldn't wouldnt've=wouldn't've wouldn'tve=wouldn't've yall=y'all yall'll=y'all'll \
    y'allll=y'all'll yall'd've=y'all'd've y'alld've=y'all'd've y'all'dve=y'all'd've youd=you'd \
    youd've=you'd've you'dve=you'd've youll=you'll youre=you're youve=you've";

static WHOLE: LazyLock<HashMap<&str, &str>> = LazyLock::new(|| {
    CONTRACTIONS.split_whitespace().filter_map(|pair| pair.split_once('=')).collect()
});

/// The words of an answer that count, as EvalAI's processor of TextVQA and VQA leaves them.
pub fn normal(text: &str) -> String {
    let text = text.to_lowercase().replace([',', '?'], "").replace("'s", " 's");
    let text = without_periods(&without_punctuation(text.trim()));
    let words = text.split_whitespace().map(|word| match word {
        "none" => "0".to_owned(),
        word => match NUMBERS.iter().position(|number| *number == word) {
            Some(number) => number.to_string(),
            None => word.to_owned(),
        },
    });
    let words = words.filter(|word| !ARTICLES.contains(&word.as_str()));
    let words =
        words.map(|word| WHOLE.get(word.as_str()).map_or(word, |whole| (*whole).to_owned()));
    words.collect::<Vec<_>>().join(" ")
}

/// Marks at a space are left out, others become one, wherever they stand.
fn without_punctuation(text: &str) -> String {
    PUNCTUATION.chars().fold(text.to_owned(), |out, mark| {
        let is_at_space = text.contains(&format!("{mark} ")) || text.contains(&format!(" {mark}"));
        out.replace(mark, if is_at_space { "" } else { " " })
    })
}

/// Leaves out the first periods that no digit follows.
fn without_periods(text: &str) -> String {
    let (mut out, mut num_left_out) = (String::with_capacity(text.len()), 0);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let is_before_digit = chars.peek().is_some_and(|next| next.is_numeric());
        match c == '.' && !is_before_digit && num_left_out < MAX_PERIODS {
            true => num_left_out += 1,
            false => out.push(c),
        }
    }
    out
}

/// The score of an answer among those of so many people, all of them normal: the mean, over each of
/// them left out, of a third for each other one who said it, up to 1. Of one person alone, whether
/// it is theirs.
pub fn accuracy(answer: &str, people: &[String]) -> f64 {
    let num_same = people.iter().filter(|other| *other == answer).count() as f64;
    let num_people = people.len() as f64;
    if people.len() == 1 {
        return num_same;
    }
    let among = |num_others: f64| (num_others / ENOUGH).min(1.0);
    let of_same = if num_same > 0.0 { num_same * among(num_same - 1.0) } else { 0.0 };
    (of_same + (num_people - num_same) * among(num_same)) / num_people
}
