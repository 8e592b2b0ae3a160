//! `Reach`: which of the positions before it a token attends to.

/// Which of the positions up to its own a token attends to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// All of them.
    #[default]
    All,
    /// So many, itself included.
    Window(usize),
    /// Those of its own chunk, of so many positions from a multiple of that on (Llama 4).
    Chunk(usize),
}

impl Reach {
    /// A window, where there is one.
    pub fn of_window(window: Option<usize>) -> Self {
        window.map_or(Self::All, Self::Window)
    }

    /// The window, if it is one.
    pub fn window(self) -> Option<usize> {
        match self {
            Self::Window(window) => Some(window),
            Self::All | Self::Chunk(_) => None,
        }
    }

    /// Most positions that a token attends to; None: all.
    pub fn most(self) -> Option<usize> {
        match self {
            Self::All => None,
            Self::Window(most) | Self::Chunk(most) => Some(most),
        }
    }

    /// The first position that the token at this one attends to.
    pub fn first(self, position: usize) -> usize {
        match self {
            Self::All => 0,
            Self::Window(window) => (position + 1).saturating_sub(window),
            Self::Chunk(len) => position - position % len,
        }
    }

    /// Tokens from this position on that begin to attend where it does; None: all of them.
    pub fn num_alike(self, position: usize) -> Option<usize> {
        match self {
            Self::All => None,
            Self::Window(window) => Some(window.saturating_sub(position).max(1)),
            Self::Chunk(len) => Some(len - position % len),
        }
    }

    /// Positions that the tokens before this one attend to, one after the other.
    pub fn num_seen_before(self, position: usize) -> f64 {
        let growing = |n: usize| n as f64 * (n + 1) as f64 / 2.0;
        match self {
            Self::All => growing(position),
            Self::Window(window) => {
                let n = position.min(window);
                growing(n) + (position - n) as f64 * window as f64
            }
            Self::Chunk(len) => (position / len) as f64 * growing(len) + growing(position % len),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Reach; 7] = [
        Reach::All,
        Reach::Window(1),
        Reach::Window(4),
        Reach::Window(100),
        Reach::Chunk(1),
        Reach::Chunk(6),
        Reach::Chunk(100),
    ];

    #[test]
    fn positions_are_counted_as_a_loop_would() {
        for reach in ALL {
            for end in 0..20 {
                let seen = (0..end).map(|position| position + 1 - reach.first(position));
                assert_eq!(reach.num_seen_before(end), seen.sum::<usize>() as f64, "{reach:?}");
            }
        }
    }

    #[test]
    fn tokens_that_are_alike_begin_where_the_first_does() {
        for reach in ALL {
            for position in 0..20 {
                let alike = |at: &usize| reach.first(*at) == reach.first(position);
                let num = (position..300).take_while(alike).count();
                let expected = reach.num_alike(position).unwrap_or(num);
                assert_eq!(num, expected, "{reach:?} {position}");
            }
        }
    }
}
