"use strict";
// Sorting, tooltips and printing. The page works without this script.
(function () {
  const root = document.documentElement;
  root.classList.add("js");

  // Sorting: a button in each header sorts best first, then worst first, then restores the original order.
  const collator = new Intl.Collator("en", { numeric: true });
  document.querySelectorAll("table[data-sortable]").forEach(function (table) {
    const body = table.tBodies[0];
    const rows = Array.from(body.rows);
    const headers = Array.from(table.tHead.rows[0].cells);
    headers.forEach(function (header, column) {
      const button = document.createElement("button");
      button.type = "button";
      while (header.firstChild) button.appendChild(header.firstChild);
      header.appendChild(button);
      button.addEventListener("click", function () { sortBy(header, column); });
    });

    function sortBy(header, column) {
      const first = header.dataset.better === "higher" ? "descending" : "ascending";
      const second = first === "descending" ? "ascending" : "descending";
      const now = header.getAttribute("aria-sort");
      const next = now === first ? second : now === second ? null : first;
      headers.forEach(function (each) { each.removeAttribute("aria-sort"); });
      if (next) header.setAttribute("aria-sort", next);
      const sorted = next ? rows.slice().sort(compareRows(column, next === "ascending" ? 1 : -1)) : rows;
      body.append.apply(body, sorted);
    }
  });

  // Figures of one unit stay together; cells without a figure come last in both directions.
  function compareRows(column, way) {
    return function (one, two) {
      const a = one.cells[column], b = two.cells[column];
      const unit = collator.compare(a.dataset.unit || "", b.dataset.unit || "");
      if (a.dataset.sort !== undefined && b.dataset.sort !== undefined) {
        return unit || way * (Number(a.dataset.sort) - Number(b.dataset.sort));
      }
      if (a.dataset.sort !== undefined) return -1;
      if (b.dataset.sort !== undefined) return 1;
      const s = a.textContent.trim(), t = b.textContent.trim();
      const empty = ["", "\u2014"];
      if (empty.includes(s) !== empty.includes(t)) return empty.includes(s) ? 1 : -1;
      return way * collator.compare(s, t);
    };
  }

  // Tooltips of the mark under the pointer or with the focus. Each table or figure is one stop of the Tab key; arrow
  // keys move between the marks in it.
  const MARKS = "[data-tip], svg [role=img]";
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.setAttribute("role", "tooltip");
  tip.hidden = true;
  document.body.appendChild(tip);
  let shownMark = null;

  function show(mark) {
    hide();
    shownMark = mark;
    tip.textContent = mark.dataset.tip || mark.getAttribute("aria-label");
    tip.hidden = false;
    mark.setAttribute("aria-describedby", "tip");
    const box = mark.getBoundingClientRect();
    const wide = tip.offsetWidth, high = tip.offsetHeight, edge = 8;
    const left = Math.min(Math.max(edge, box.left + box.width / 2 - wide / 2), root.clientWidth - wide - edge);
    const above = box.top - high - edge;
    tip.style.left = Math.max(edge, left) + "px";
    tip.style.top = (above > edge ? above : box.bottom + edge) + "px";
  }

  function hide() {
    if (shownMark) shownMark.removeAttribute("aria-describedby");
    shownMark = null;
    tip.hidden = true;
  }

  function findMark(event) {
    return event.target instanceof Element ? event.target.closest(MARKS) : null;
  }

  document.addEventListener("pointerover", function (event) {
    const mark = findMark(event);
    if (mark) show(mark);
    else if (shownMark && shownMark !== document.activeElement && !tip.contains(event.target)) hide();
  });
  document.addEventListener("focusin", function (event) {
    const mark = findMark(event);
    if (mark) show(mark);
    else hide();
  });
  document.addEventListener("scroll", function () { if (shownMark !== document.activeElement) hide(); }, { passive: true });

  function makeTabStop(mark) {
    const group = mark.closest("table, svg");
    group.querySelectorAll('[tabindex="0"]:not(button)').forEach(function (each) { each.setAttribute("tabindex", "-1"); });
    mark.setAttribute("tabindex", "0");
  }

  document.querySelectorAll("table, svg").forEach(function (group) {
    const marks = group.querySelectorAll(MARKS);
    marks.forEach(function (mark, number) { mark.setAttribute("tabindex", number ? "-1" : "0"); });
  });

  const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
  document.addEventListener("keydown", function (event) {
    if (event.key === "Escape") hide();
    const mark = findMark(event);
    if (!mark || mark !== event.target) return;
    const marks = Array.from(mark.closest("table, svg").querySelectorAll(MARKS));
    const at = marks.indexOf(mark);
    const to = event.key === "Home" ? 0 : event.key === "End" ? marks.length - 1 : at + (STEPS[event.key] || 0);
    if (to === at || !marks[to]) return;
    event.preventDefault();
    makeTabStop(marks[to]);
    marks[to].focus();
  });

  // Folded sections are printed too.
  let folded = [];
  addEventListener("beforeprint", function () {
    folded = Array.from(document.querySelectorAll("details:not([open])"));
    folded.forEach(function (each) { each.open = true; });
  });
  addEventListener("afterprint", function () { folded.forEach(function (each) { each.open = false; }); });

  // A link to a folded section opens it.
  function open() {
    const target = location.hash.length > 1 ? document.getElementById(location.hash.slice(1)) : null;
    const details = target ? target.closest("details") : null;
    if (details) details.open = true;
  }
  addEventListener("hashchange", open);
  open();
})();
