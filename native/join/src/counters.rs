//! What was counted, so that nothing is dropped in silence.

macro_rules! counters {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $field:ident,)* }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl $name {
            /// Names and values, in order.
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($field), self.$field),)*]
            }

            /// Values, in order, to be set.
            pub fn values_mut(&mut self) -> Vec<&mut u64> {
                vec![$(&mut self.$field,)*]
            }
        }
    };
}

counters! {
    /// Counts of a join since it was made, its snapshots included.
    Counters {
        /// Impressions handed in.
        impressions,
        /// Those that changed nothing but perhaps where their items count.
        impressions_duplicate,
        /// Those that showed further items of a request that was there.
        impressions_split,
        /// Those whose windows were all over.
        impressions_late,
        /// Those for which the window of some group was over.
        impressions_partly_late,
        /// Those from before the time rows are made from.
        impressions_before,
        /// Those beyond what one request may have.
        impressions_excess,
        /// Items handed in.
        items,
        /// Items that count elsewhere: shown before, or twice.
        items_repeated,
        /// Actions handed in.
        actions,
        /// Actions that no label asks for.
        actions_unlabelled,
        /// Actions that were known, or came after an earlier one of their kind.
        actions_duplicate,
        /// Actions after their windows.
        actions_late,
        /// Actions that had to wait for their impression.
        actions_waited,
        /// Actions whose impression never came.
        actions_orphan,
        /// Actions of requests that serving does not log.
        actions_unlogged,
        /// Orphans that may be of impressions from before the time rows are made from.
        actions_before,
        /// Rows given out.
        rows,
        /// Those of them that settle labels positive after their group's first row.
        rows_correction,
        /// First rows none of whose labels was kept.
        rows_unkept,
        /// Negatives that were given out.
        negatives,
        /// Negatives that were not kept.
        negatives_unkept,
        /// Positives that were given out.
        positives,
        /// Calls that were refused because the bound was reached.
        refusals,
    }
}

counters! {
    /// Counts of marks since they were made.
    MarksCounters {
        /// Rows asked about.
        rows,
        /// Rows with nothing to learn.
        rows_dropped,
        /// Rows from before the horizon.
        rows_old,
        /// Labels to learn.
        learn,
        /// Labels to learn as corrections.
        correct,
        /// Labels that were known.
        labels_dropped,
        /// Labels marked as refused or skipped.
        refused,
        /// Calls that were refused because the bound was reached.
        refusals,
    }
}
