//! `RunDate`: the date that `strftime_now` of chat templates sees, fixed for a whole run: the same
//! input gives the same prompts tomorrow.

mod strftime;

/// A calendar date and time of day, no time zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunDate {
    year: i32,
    month: u8,
    day: u8,
    hour: u8,
    minute: u8,
    second: u8,
}

impl Default for RunDate {
    /// 1970-01-01 00:00:00.
    fn default() -> Self {
        Self { year: 1970, month: 1, day: 1, hour: 0, minute: 0, second: 0 }
    }
}

impl RunDate {
    /// Reads `YYYY-MM-DD`, or `YYYY-MM-DD HH:MM[:SS]` with a space or a `T` between.
    pub fn parse(text: &str) -> Option<Self> {
        let (date, time) = text.split_once([' ', 'T']).unwrap_or((text, "00:00:00"));
        let mut parts = date.splitn(3, '-');
        let (year, month, day) = (parts.next()?, parts.next()?, parts.next()?);
        let mut parts = time.split('.').next()?.splitn(3, ':');
        let (hour, minute) = (parts.next()?, parts.next()?);
        let date = Self {
            year: year.parse().ok()?,
            month: month.parse().ok()?,
            day: day.parse().ok()?,
            hour: hour.parse().ok()?,
            minute: minute.parse().ok()?,
            second: parts.next().unwrap_or("0").parse().ok()?,
        };
        let valid = (1..=9999).contains(&date.year)
            && (1..=12).contains(&date.month)
            && (1..=date.days_in_month()).contains(&date.day)
            && date.hour < 24
            && date.minute < 60
            && date.second < 60;
        valid.then_some(date)
    }

    /// The date of a Unix time, in UTC.
    pub fn from_unix(seconds: i64) -> Self {
        let (mut days, time) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400) as u32);
        let mut date = Self {
            hour: (time / 3600) as u8,
            minute: (time / 60 % 60) as u8,
            second: (time % 60) as u8,
            ..Self::default()
        };
        while days < 0 {
            date.year -= 1;
            days += date.days_in_year();
        }
        while days >= date.days_in_year() {
            days -= date.days_in_year();
            date.year += 1;
        }
        while days >= i64::from(date.days_in_month()) {
            days -= i64::from(date.days_in_month());
            date.month += 1;
        }
        date.day = days as u8 + 1;
        date
    }

    fn is_leap(&self) -> bool {
        self.year % 4 == 0 && (self.year % 100 != 0 || self.year % 400 == 0)
    }

    fn days_in_year(&self) -> i64 {
        if self.is_leap() { 366 } else { 365 }
    }

    fn days_in_month(&self) -> u8 {
        match self.month {
            2 if self.is_leap() => 29,
            2 => 28,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        }
    }

    /// 1..=366.
    fn day_of_year(&self) -> u32 {
        let before = (1..self.month).map(|month| Self { month, ..*self }.days_in_month());
        before.map(u32::from).sum::<u32>() + u32::from(self.day)
    }

    /// Seconds since 1970, as if it were a date in UTC.
    fn unix(&self) -> i64 {
        let year = i64::from(self.year) - 1;
        // Days before the year, since year 1.
        let days = year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
        let days = days - 719_162 + i64::from(self.day_of_year()) - 1;
        let time = [self.hour, self.minute, self.second].map(i64::from);
        ((days * 24 + time[0]) * 60 + time[1]) * 60 + time[2]
    }

    /// Year and week of ISO 8601.
    fn iso_week(&self) -> (i32, u32) {
        let days = self.day_of_year() as i32;
        let weekday = (self.weekday() as i32 + 6) % 7;
        let week = (days - weekday + 9) / 7;
        let long = |year: i32| {
            let last = Self { year, month: 12, day: 31, ..*self }.weekday();
            let before = Self { year: year - 1, month: 12, day: 31, ..*self }.weekday();
            if last == 4 || before == 3 { 53 } else { 52 }
        };
        match week {
            0 => (self.year - 1, long(self.year - 1) as u32),
            week if week > long(self.year) => (self.year + 1, 1),
            week => (self.year, week as u32),
        }
    }

    /// 0 is Sunday (Sakamoto's method).
    fn weekday(&self) -> usize {
        let shift = [0, 3, 2, 5, 0, 3, 5, 1, 4, 6, 2, 4][usize::from(self.month) - 1];
        let year = self.year - i32::from(self.month < 3);
        let day = year + year / 4 - year / 100 + year / 400 + shift + i32::from(self.day);
        day.rem_euclid(7) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::RunDate;

    /// Expected values are Python's.
    #[test]
    fn strftime_is_pythons() {
        let date = RunDate::parse("2024-02-05T15:04:09").expect("a date");
        assert_eq!(date.strftime("%d %B %Y"), "05 February 2024");
        assert_eq!(date.strftime("%A, %b %-d %y %I:%M %p"), "Monday, Feb 5 24 03:04 PM");
        assert_eq!(date.strftime("%F|%j|%e|%c"), "2024-02-05|036| 5|Mon Feb  5 15:04:09 2024");
        assert_eq!(date.strftime("100%% %Q %"), "100% %Q %");
        let weeks = "%G-W%V-%u %g %U %W %j %s";
        for (date, text) in [
            ("2024-12-30", "2025-W01-1 25 52 53 365 1735516800"),
            ("2021-01-03", "2020-W53-7 20 01 00 003 1609632000"),
            ("2020-12-31", "2020-W53-4 20 52 52 366 1609372800"),
            ("2023-01-01", "2022-W52-7 22 01 00 001 1672531200"),
            ("2016-01-01", "2015-W53-5 15 00 00 001 1451606400"),
            ("2000-02-29", "2000-W09-2 00 09 09 060 951782400"),
            ("1970-01-01", "1970-W01-4 70 00 00 001 0"),
        ] {
            assert_eq!(RunDate::parse(date).expect("a date").strftime(weeks), text, "{date}");
        }
    }

    #[test]
    fn only_real_dates_are_read() {
        assert_eq!(RunDate::parse("2023-02-29"), None);
        assert_eq!(RunDate::parse("2024-13-01"), None);
        assert_eq!(RunDate::parse("tomorrow"), None);
        assert!(RunDate::parse("2024-02-29 23:59").is_some());
    }

    #[test]
    fn unix_times_are_utc_dates() {
        let text = |seconds| RunDate::from_unix(seconds).strftime("%F %T %a");
        assert_eq!(text(0), "1970-01-01 00:00:00 Thu");
        assert_eq!(text(1_709_251_199), "2024-02-29 23:59:59 Thu");
        assert_eq!(text(-1), "1969-12-31 23:59:59 Wed");
    }
}
