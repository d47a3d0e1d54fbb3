"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;

  // Light and dark. A file's page may not be allowed to keep anything: then the system decides.
  const remembered = {
    read() { try { return localStorage.getItem("etdeploy-theme"); } catch { return null; } },
    write(name) { try { localStorage.setItem("etdeploy-theme", name); } catch { /* not kept */ } },
  };
  const system = matchMedia("(prefers-color-scheme: dark)");
  const button = document.getElementById("theme");
  let chosen = remembered.read();
  function showTheme() {
    const dark = chosen ? chosen === "dark" : system.matches;
    root.dataset.theme = dark ? "dark" : "light";
    button.textContent = dark ? "Light" : "Dark";
    button.setAttribute("aria-label", `Switch to the ${dark ? "light" : "dark"} theme`);
  }
  button.hidden = false;
  button.addEventListener("click", () => {
    chosen = root.dataset.theme === "dark" ? "light" : "dark";
    remembered.write(chosen);
    showTheme();
    drawAll();
  });
  system.addEventListener("change", () => { showTheme(); drawAll(); });
  showTheme();

  // Plots.
  function coloured(value, style) {
    if (typeof value === "string") {
      return value.startsWith("@") ? style.getPropertyValue(`--${value.slice(1)}`).trim() : value;
    }
    if (Array.isArray(value)) return value.map((each) => coloured(each, style));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, coloured(v, style)]));
  }
  // Names are text, but plotly.js reads some tags and entities in text.
  const axis = { gridcolor: "@grid", linecolor: "@line", zerolinecolor: "@grid", tickcolor: "@line", automargin: true };
  const common = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", colorway: ["@blue", "@orange", "@green", "@purple", "@sky", "@red", "@yellow", "@grey"],
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: "@muted" },
    margin: { l: 56, r: 20, t: 38, b: 44 }, hovermode: "closest", showlegend: false,
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
    hoverlabel: { bgcolor: "@surface", bordercolor: "@line", font: { color: "@text", size: 12 }, align: "left" },
  };
  // The bar with buttons is in the upper margin, so that it covers nothing.
  const config = { responsive: true, displaylogo: false, displayModeBar: "hover", modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };
  function draw(figure) {
    const style = getComputedStyle(root);
    const layout = { ...common, ...figure.layout, margin: { ...common.margin, ...figure.layout.margin } };
    layout.margin.t = Math.max(layout.margin.t, common.margin.t);
    for (const key of Object.keys(layout)) {
      if (/^[xy]axis\d*$/.test(key)) layout[key] = { ...axis, ...layout[key] };
    }
    const element = document.getElementById(figure.key);
    element.querySelector(".waiting")?.remove();
    return Plotly.react(element, coloured(figure.data, style), coloured(layout, style), config);
  }
  async function drawAll() {
    if (!window.Plotly) return;
    for (const figure of data.figures) {
      await draw(figure);
      await new Promise((done) => setTimeout(done));
    }
    root.dataset.drawn = "yes";
  }
  async function unpack() {
    const packed = document.getElementById("plots");
    if (!packed) { root.dataset.drawn = "yes"; return; }
    const text = atob(packed.textContent);
    const bytes = new Uint8Array(text.length);
    for (let i = 0; i < bytes.length; i += 1) bytes[i] = text.charCodeAt(i);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
    if (!window.Plotly) throw new Error("its script was not run");
    await drawAll();
  }
  function failed(error) {
    const trouble = document.getElementById("trouble");
    trouble.textContent = `This browser cannot draw the plots (${error.message}). The tables have the numbers.`;
    trouble.hidden = false;
    for (const each of document.querySelectorAll(".waiting")) each.remove();
  }
  // After the first picture: the numbers are there before the plots.
  requestAnimationFrame(() => setTimeout(() => unpack().catch(failed)));
  addEventListener("beforeprint", () => {
    for (const each of document.querySelectorAll("main details:not(.record)")) each.open = true;
    for (const each of document.querySelectorAll(".js-plotly-plot")) Plotly.Plots.resize(each);
  });
  document.addEventListener("toggle", (event) => {
    for (const each of event.target.querySelectorAll?.(".js-plotly-plot") ?? []) Plotly.Plots.resize(each);
  }, true);

  // Large tables: of thousands of rows, those in sight are in the document.
  const ROW = 52, SPARE = 8;
  function node(tag, attributes, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value !== "" && value !== undefined) element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  }
  function cell(column, value, row, payload) {
    if (column.type === "name") {
      const where = column.where.map((i) => payload.strings[row[i]]).filter(Boolean).join(" · ");
      const children = [node("span", { class: "clip", title: value }, node("code", {}, value))];
      if (where) children.push(node("span", { class: "clip where", title: where }, where));
      return children;
    }
    if (column.type === "link") {
      const address = payload.strings[row[column.address]], where = payload.strings[row[column.where]];
      const link = node("span", { class: "clip", title: value }, address ? node("a", { href: address, rel: "noreferrer" }, value) : value);
      return where ? [link, node("span", { class: "clip where", title: where }, where)] : [link];
    }
    if (column.type === "text") {
      const note = column.note === undefined ? "" : payload.strings[row[column.note]];
      const children = [node("span", { class: "clip", title: value }, value)];
      if (note) children.push(node("span", { class: "clip where", title: note }, note));
      return children;
    }
    if (value === null || value === undefined) return ["–"];
    if (column.type === "share") {
      const bar = node("i", { style: `width: ${Math.min(100, Math.max(0, 100 * value / payload.largest))}%` });
      return [`${(value * 100).toFixed(value < 0.1 ? 2 : 1)} %`, node("span", { class: "meter" }, bar)];
    }
    if (column.type === "change") return [`${value > 0 ? "+" : value < 0 ? "−" : ""}${Math.abs(value).toFixed(column.digits)}`];
    return [value.toLocaleString("en", { minimumFractionDigits: column.digits, maximumFractionDigits: column.digits })];
  }
  class Rows {
    constructor(element, payload) {
      this.payload = payload;
      this.box = element.querySelector(".rows");
      this.search = element.querySelector("input");
      this.filters = [...element.querySelectorAll("select")];
      this.count = element.querySelector("output");
      this.column = payload.sorted;
      this.down = true;
      const text = payload.columns.flatMap((c, i) => c.strings ? [i] : []).concat(payload.searched);
      this.haystack = payload.rows.map((row) => text.map((i) => payload.strings[row[i]]).join("\n").toLowerCase());
      // Each text is compared once, and not in every sorting again.
      this.ranks = [];
      const order = payload.strings.map((_, i) => i).sort((a, b) => (payload.strings[a] < payload.strings[b] ? -1 : 1));
      order.forEach((place, rank) => { this.ranks[place] = rank; });
      this.build();
      this.search.addEventListener("input", () => this.update());
      for (const each of this.filters) each.addEventListener("change", () => this.update());
      this.box.addEventListener("scroll", () => this.show(), { passive: true });
      addEventListener("beforeprint", () => this.show(60));
      addEventListener("afterprint", () => this.show());
      this.update();
    }
    value(row, index) {
      return this.payload.columns[index].strings ? this.payload.strings[row[index]] : row[index];
    }
    build() {
      const widths = node("colgroup", {}), heads = node("tr", {});
      this.heads = this.payload.columns.map((column, index) => {
        const button = node("button", { type: "button" }, column.title);
        button.addEventListener("click", () => this.sort(index));
        const numeric = column.strings && column.by === undefined ? "" : "number";
        const head = node("th", { scope: "col", class: `${numeric} ${column.wide ? "wide" : ""}`.trim() }, button);
        widths.append(node("col", { class: column.wide ? "wide" : "", style: column.width ? `width: ${column.width}` : "" }));
        heads.append(head);
        return head;
      });
      this.body = node("tbody", {});
      this.table = node("table", {}, widths, node("thead", {}, heads), this.body);
      // The first column takes what the others leave, but not less than a name needs.
      const others = (columns) => columns.reduce((sum, column) => sum + parseFloat(column.width ?? 0), 0);
      this.table.style.setProperty("--all", `${others(this.payload.columns) + 16}rem`);
      this.table.style.setProperty("--narrow", `${others(this.payload.columns.filter((c) => !c.wide)) + 8}rem`);
      this.box.append(this.table);
      this.filters.forEach((filter, i) => {
        const found = [...new Set(this.payload.rows.map((row) => row[this.payload.filters[i]]))];
        for (const name of found.map((place) => this.payload.strings[place]).sort()) filter.append(node("option", { value: name }, name));
        if (found.length < 2) filter.parentElement.hidden = true;
      });
    }
    sort(index) {
      const isNew = this.column !== index, column = this.payload.columns[index];
      this.down = isNew ? !column.strings || column.by !== undefined : !this.down;
      this.column = index;
      this.update();
    }
    update() {
      const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
      const { rows, strings, columns } = this.payload;
      const wanted = this.filters.flatMap((each, i) => each.value ? [[this.payload.filters[i], each.value]] : []);
      const found = [];
      rows.forEach((row, i) => {
        if (wanted.some(([place, value]) => strings[row[place]] !== value)) return;
        if (words.every((word) => this.haystack[i].includes(word))) found.push(row);
      });
      const sign = this.down ? -1 : 1, column = this.column;
      // Numbers with different units are texts, which are sorted by another column.
      const by = columns[column].by ?? column;
      const key = columns[column].strings && by === column ? (row) => this.ranks[row[by]] : (row) => row[by];
      found.sort((a, b) => {
        const x = key(a), y = key(b);
        if (x === null || y === null) return (x === null) - (y === null);  // unknown comes last
        return sign * (x - y);
      });
      this.found = found;
      this.heads.forEach((head, i) => {
        if (i === this.column) head.setAttribute("aria-sort", this.down ? "descending" : "ascending");
        else head.removeAttribute("aria-sort");
      });
      const all = rows.length.toLocaleString("en"), some = found.length.toLocaleString("en");
      this.count.textContent = found.length === rows.length ? `${all} rows` : `${some} of ${all} rows`;
      this.table.setAttribute("aria-rowcount", found.length + 1);
      this.box.scrollTop = 0;
      this.show();
    }
    show(printed) {
      const first = printed ? 0 : Math.max(0, Math.floor(this.box.scrollTop / ROW) - SPARE);
      const last = Math.min(this.found.length, printed ?? first + Math.ceil((this.box.clientHeight || 528) / ROW) + 2 * SPARE);
      const space = (count) => {
        const td = node("td", {});
        td.style.height = `${count * ROW}px`;
        return node("tr", { class: "space", "aria-hidden": "true" }, td);
      };
      const shown = this.found.slice(first, last).map((row, i) => node(
        "tr", { class: "row", "aria-rowindex": first + i + 2 },
        ...this.payload.columns.map((column, c) => {
          const numeric = column.strings && column.by === undefined ? "" : "number";
          const name = `${numeric} ${column.wide ? "wide" : ""}`.trim();
          return node("td", { class: name }, ...cell(column, this.value(row, c), row, this.payload));
        }),
      ));
      if (!this.found.length) shown.push(node("tr", {}, node("td", { class: "none" }, "Nothing matches.")));
      const after = printed ? 0 : this.found.length - last;
      this.body.replaceChildren(...(first ? [space(first)] : []), ...shown, ...(after > 0 ? [space(after)] : []));
    }
  }
  for (const element of document.querySelectorAll(".large[data-key]")) new Rows(element, data.tables[element.dataset.key]);
  // In the pages of a history.
  globalThis.drawTimelines?.({ timelines: data.timelines, node, Rows });

  // The records inside.
  for (const element of document.querySelectorAll(".record")) {
    const source = () => JSON.stringify(JSON.parse(document.getElementById(`record-${element.dataset.index}`).textContent), null, 2) + "\n";
    const said = element.querySelector("output");
    element.addEventListener("toggle", () => { if (element.open) element.querySelector("pre").textContent ||= source(); });
    element.querySelector(".copy").addEventListener("click", async () => {
      try { await navigator.clipboard.writeText(source()); said.textContent = "copied"; }
      catch { getSelection().selectAllChildren(element.querySelector("pre")); said.textContent = "selected: copy it with the keyboard"; }
    });
    element.querySelector(".save").addEventListener("click", () => {
      const link = node("a", { href: URL.createObjectURL(new Blob([source()], { type: "application/json" })), download: element.dataset.file });
      link.click();
      URL.revokeObjectURL(link.href);
    });
  }

  // Which section is in sight.
  const links = new Map([...document.querySelectorAll("nav a")].map((a) => [a.hash.slice(1), a]));
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      for (const [key, link] of links) {
        if (key === entry.target.id) link.setAttribute("aria-current", "true");
        else link.removeAttribute("aria-current");
      }
    }
  }, { rootMargin: "-15% 0px -75% 0px" });
  for (const section of document.querySelectorAll("main > section")) watcher.observe(section);
})();
