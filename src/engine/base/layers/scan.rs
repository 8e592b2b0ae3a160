//! Sizes of the recurrences of Mamba 1 and 2.

/// Sizes of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanShape {
    /// Heads, each with its own dt.
    pub num_heads: usize,
    /// Values of x and y of a head.
    pub head_dim: usize,
    /// Groups of heads that share B and C.
    pub num_groups: usize,
    /// Values of B and of C of a group.
    pub state_size: usize,
}

impl ScanShape {
    /// Values of x, y and z of all heads.
    pub fn inner_width(&self) -> usize {
        self.num_heads * self.head_dim
    }

    /// Values of x, B and C.
    pub fn conv_width(&self) -> usize {
        self.inner_width() + 2 * self.num_groups * self.state_size
    }

    /// Values of z, x, B, C and dt: columns of a row.
    pub fn row_width(&self) -> usize {
        self.inner_width() + self.conv_width() + self.num_heads
    }

    /// Values of the state of all heads.
    pub fn state_len(&self) -> usize {
        self.inner_width() * self.state_size
    }
}

/// Sizes of a scan whose channels each have their own dt, and a rate for every value of the state
/// (Mamba 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SelectiveShape {
    /// Channels of x, y and z.
    pub num_channels: usize,
    /// Groups of channels, each with its own B, C and values that dt is made of.
    pub num_groups: usize,
    /// Values that dt of a group is made of.
    pub rank: usize,
    /// Values of B and of C of a group, and of the state of a channel.
    pub state_size: usize,
}

impl SelectiveShape {
    /// Channels of a group.
    pub fn group_width(&self) -> usize {
        self.num_channels / self.num_groups
    }

    /// Values of a group that choose: those that dt is made of, B and C.
    pub fn chosen_width(&self) -> usize {
        self.rank + 2 * self.state_size
    }

    /// Values of the state of all channels.
    pub fn state_len(&self) -> usize {
        self.num_channels * self.state_size
    }
}
