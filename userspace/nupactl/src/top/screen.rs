// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The page on a terminal, and the keys.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::Stylize;
use ratatui::text::{Line, Text};
use ratatui::widgets::Paragraph;
use ratatui::{DefaultTerminal, Frame};
use signal_hook::consts::{SIGHUP, SIGTERM};

use super::page::Page;
use super::sample::Sample;
use super::{Sort, Top};
use crate::facts::Host;

/// How often it is looked whether a signal came.
const TICK: Duration = Duration::from_millis(200);
const KEYS: &str = "q quit   order of QPs: n node  s state  p process  a activity   arrows scroll";

/// Shows it until somebody types q, or a signal ends the program.
pub(super) fn run(host: &mut Host, args: &Top) -> anyhow::Result<()> {
    let ends = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, ends.clone())?;
    }
    let terminal = ratatui::try_init();
    let mut terminal = terminal.context("the terminal cannot show it: use `nupactl top --once`")?;
    let shown = show(host, args, &mut terminal, &ends);
    // Whatever happened, the terminal is as it was.
    ratatui::try_restore().context("the terminal could not be put back: run `reset`")?;
    shown
}

/// What the keys have chosen.
pub(super) struct View {
    pub(super) sort: Sort,
    /// Lines above the first one that is shown.
    pub(super) scroll: u16,
}

fn show(
    host: &mut Host,
    args: &Top,
    terminal: &mut DefaultTerminal,
    ends: &AtomicBool,
) -> anyhow::Result<()> {
    let mut view = View {
        sort: args.sort,
        scroll: 0,
    };
    let mut before = None;
    loop {
        let now = Sample::read(host)?;
        let begin = Instant::now();
        let mut changed = true;
        loop {
            // Thousands of queue pairs are not sorted again for nothing.
            if changed {
                terminal.draw(|frame| draw(frame, &mut view, before.as_ref(), now.as_ref()))?;
            }
            let left = args.interval.saturating_sub(begin.elapsed());
            if left.is_zero() {
                break;
            }
            let key = event::poll(left.min(TICK))?.then(event::read).transpose()?;
            // A key, or another size.
            changed = key.is_some();
            let quits = matches!(key, Some(Event::Key(key)) if !view.key(key));
            if quits || ends.load(Ordering::Relaxed) {
                return Ok(());
            }
        }
        before = now;
    }
}

impl View {
    /// Does what a key says. False if it says to quit.
    pub(super) fn key(&mut self, key: KeyEvent) -> bool {
        if key.kind == KeyEventKind::Release {
            return true;
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if control => return false,
            KeyCode::Char('q') | KeyCode::Esc => return false,
            KeyCode::Char('n') => self.sort = Sort::Node,
            KeyCode::Char('s') => self.sort = Sort::State,
            KeyCode::Char('p') => self.sort = Sort::Process,
            KeyCode::Char('a') => self.sort = Sort::Activity,
            KeyCode::Up => self.scroll = self.scroll.saturating_sub(1),
            KeyCode::Down => self.scroll = self.scroll.saturating_add(1),
            KeyCode::PageUp => self.scroll = self.scroll.saturating_sub(10),
            KeyCode::PageDown => self.scroll = self.scroll.saturating_add(10),
            KeyCode::Home => self.scroll = 0,
            _ => {}
        }
        true
    }
}

/// Draws the page, and the keys below it.
pub(super) fn draw(
    frame: &mut Frame<'_>,
    view: &mut View,
    before: Option<&Sample>,
    now: Option<&Sample>,
) {
    let sort = view.sort;
    let lines = Page { before, now, sort }.lines();
    let layout = Layout::vertical([Constraint::Min(0), Constraint::Length(1)]);
    let [body, foot] = layout.areas(frame.area());
    // The last line stays on the screen.
    let count = u16::try_from(lines.len()).unwrap_or(u16::MAX);
    view.scroll = view.scroll.min(count.saturating_sub(body.height));
    let lines = lines.into_iter().map(|line| match line.heads {
        true => Line::from(line.text).bold(),
        false => Line::from(line.text),
    });
    let text: Text<'_> = lines.collect();
    frame.render_widget(Paragraph::new(text).scroll((view.scroll, 0)), body);
    frame.render_widget(Line::from(KEYS).reversed(), foot);
}
