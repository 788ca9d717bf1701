//! Counters, so that nothing is dropped silently.

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

            /// References to the values, in order.
            pub fn values_mut(&mut self) -> Vec<&mut u64> {
                vec![$(&mut self.$field,)*]
            }
        }
    };
}

counters! {
    /// Counters of a join since it was created.
    Counters {
        /// Impressions added.
        impressions,
        /// Duplicate impressions; at most they change for which copy an item counts.
        impressions_duplicate,
        /// Impressions that showed more items of a known request.
        impressions_split,
        /// Impressions after all their windows.
        impressions_late,
        /// Impressions after the window of some group.
        impressions_partly_late,
        /// Impressions before `from_ms`.
        impressions_before,
        /// Impressions beyond the maximum per request.
        impressions_excess,
        /// Items added.
        items,
        /// Items that count for another impression of the request, or occurred twice in one.
        items_repeated,
        /// Actions added.
        actions,
        /// Actions that no label uses.
        actions_unlabelled,
        /// Actions that were known already, or later than one of the same kind.
        actions_duplicate,
        /// Further actions on an item that make its number together with the first.
        actions_combined,
        /// Actions beyond the maximum that make a number of one item.
        actions_excess,
        /// Actions without the number that a label is made of; they make only its other labels.
        actions_valueless,
        /// Actions after their windows.
        actions_late,
        /// Actions that waited for their impression.
        actions_waited,
        /// Actions whose impression never came.
        actions_orphan,
        /// Actions of requests that serving does not log.
        actions_unlogged,
        /// Actions on impressions before `from_ms`, and orphans that may belong to such.
        actions_before,
        /// Rows emitted.
        rows,
        /// Rows that settle labels positive after their group's first row.
        rows_correction,
        /// First rows without any kept label.
        rows_unkept,
        /// Interactions emitted.
        interactions,
        /// Negatives emitted.
        negatives,
        /// Negatives that sampling dropped.
        negatives_unkept,
        /// Positives emitted.
        positives,
        /// Calls rejected because the memory bound was reached.
        refusals,
    }
}

counters! {
    /// Counters of marks since they were created.
    MarksCounters {
        /// Rows looked up.
        rows,
        /// Rows with nothing to learn.
        rows_dropped,
        /// Rows older than the horizon.
        rows_old,
        /// Labels to learn.
        learn,
        /// Labels to learn as corrections.
        correct,
        /// Labels that were learned already.
        labels_dropped,
        /// Labels marked as refused or skipped.
        refused,
        /// Calls rejected because the memory bound was reached.
        refusals,
    }
}
