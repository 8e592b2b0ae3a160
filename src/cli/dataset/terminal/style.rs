//! Colour: who may decide it, and the few places that have it. The environment is read here and
//! nowhere else.

use std::io::IsTerminal;

use super::display::ColorArg;

/// What of the environment matters for display.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// `NO_COLOR` is set and not empty.
    pub no_color: bool,
    /// `FORCE_COLOR` or `CLICOLOR_FORCE` is set, not empty and not 0.
    pub force_color: bool,
    /// `TERM` is `dumb`.
    pub dumb: bool,
    /// Standard error is a terminal.
    pub stderr_is_terminal: bool,
    /// Standard output is a terminal.
    pub stdout_is_terminal: bool,
}

impl Environment {
    /// Reads the process's environment.
    pub fn read() -> Self {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let forced = |name: &str| set(name).is_some_and(|value| value != "0");
        Self {
            no_color: set("NO_COLOR").is_some(),
            force_color: forced("FORCE_COLOR") || forced("CLICOLOR_FORCE"),
            dumb: set("TERM").is_some_and(|term| term == "dumb"),
            stderr_is_terminal: std::io::stderr().is_terminal(),
            stdout_is_terminal: std::io::stdout().is_terminal(),
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the one place where display reads the environment")]
fn variable(name: &str) -> Option<std::ffi::OsString> {
    std::env::var_os(name)
}

/// Writes colours, or does not.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    color: bool,
}

impl Style {
    /// Of standard error. The flag wins, then `NO_COLOR`, then the forcing variables, then whether
    /// it is a terminal.
    pub fn new(flag: ColorArg, environment: &Environment) -> Self {
        Self::of(flag, environment, environment.stderr_is_terminal)
    }

    /// The same of standard output.
    pub fn of_stdout(flag: ColorArg, environment: &Environment) -> Self {
        Self::of(flag, environment, environment.stdout_is_terminal)
    }

    fn of(flag: ColorArg, environment: &Environment, is_terminal: bool) -> Self {
        let color = match flag {
            ColorArg::Always => true,
            ColorArg::Never => false,
            ColorArg::Auto if environment.no_color => false,
            ColorArg::Auto if environment.force_color => true,
            ColorArg::Auto => is_terminal && !environment.dumb,
        };
        Self { color }
    }

    /// No colours.
    pub fn plain() -> Self {
        Self { color: false }
    }

    /// `error[...]:`
    pub fn error(self, text: &str) -> String {
        self.paint("1;31", text)
    }

    /// `warning:`
    pub fn warning(self, text: &str) -> String {
        self.paint("1;33", text)
    }

    /// `help:`
    pub fn help(self, text: &str) -> String {
        self.paint("1;36", text)
    }

    /// What should be seen first.
    pub fn strong(self, text: &str) -> String {
        self.paint("1", text)
    }

    /// A line that only the first of two texts has.
    pub fn removed(self, text: &str) -> String {
        self.paint("31", text)
    }

    /// A line that only the second has.
    pub fn added(self, text: &str) -> String {
        self.paint("32", text)
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.color { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flag_over_no_color_over_force_over_terminal() {
        let environment = |no_color, force_color, stderr_is_terminal| Environment {
            no_color,
            force_color,
            dumb: false,
            stderr_is_terminal,
            stdout_is_terminal: false,
        };
        let auto = |e: Environment| Style::new(ColorArg::Auto, &e).color;
        assert!(!auto(environment(true, true, true)));
        assert!(auto(environment(false, true, false)));
        assert!(auto(environment(false, false, true)));
        assert!(!auto(environment(false, false, false)));
        assert!(!auto(Environment { dumb: true, ..environment(false, false, true) }));
        assert!(Style::new(ColorArg::Always, &environment(true, false, false)).color);
        assert!(!Style::new(ColorArg::Never, &environment(false, true, true)).color);
        // Each stream asks for itself.
        let stdout_is_terminal = Environment { stdout_is_terminal: true, ..Environment::default() };
        assert!(Style::of_stdout(ColorArg::Auto, &stdout_is_terminal).color);
        assert!(!auto(stdout_is_terminal));
        assert!(!Style::of_stdout(ColorArg::Auto, &environment(false, false, true)).color);
    }
}
