// Fetches the page again and puts its new content in the place of the old; focus, open topics and place stay, and so
// does a form that somebody may be filling in. A click into the line of a share-partition asks for the record there.
(() => {
  const button = document.getElementById("pause");
  const everyMs = Number(document.body.dataset.refreshMs);
  let paused = false;

  const openIds = () => [...document.querySelectorAll("details[open]")].map((one) => one.id);

  function putInPlace(old, next) {
    const kept = new Map();
    for (const one of [...old.children]) {
      if (one.dataset.keep && next.querySelector(`#${one.id}`)) kept.set(one.id, one);
      else one.remove();
    }
    let before = old.firstElementChild;
    for (const one of [...next.children]) {
      if (kept.has(one.id)) before = kept.get(one.id).nextElementSibling;
      else old.insertBefore(one, before);
    }
  }

  function show(text) {
    const next = new DOMParser().parseFromString(text, "text/html").querySelector("main");
    if (!next) throw new Error("no page");
    const old = document.querySelector("main");
    const known = new Set([...old.querySelectorAll("details")].map((one) => one.id));
    const open = new Set(openIds());
    const focused = document.activeElement && document.activeElement.id;
    for (const one of next.querySelectorAll("details")) if (known.has(one.id)) one.open = open.has(one.id);
    putInPlace(old, next);
    const again = focused && document.getElementById(focused);
    if (again) again.focus({ preventScroll: true });
  }

  async function refresh() {
    if (paused || document.hidden) return;
    try {
      const answer = await fetch(location.href, { cache: "no-store" });
      const text = await answer.text();
      if (paused) return;
      show(text);
      document.body.classList.remove("stale");
    } catch {
      document.body.classList.add("stale");
    }
  }

  document.addEventListener("input", (event) => {
    if (event.target.id !== "version") return;
    const chosen = event.target.valueAsNumber;
    const known = [...document.querySelectorAll("#versions option")].filter((one) => Number(one.value) <= chosen);
    const last = known[known.length - 1];
    const after = last && Number(last.value) < chosen ? "after " : "";
    document.getElementById("version-shown").textContent = `version ${chosen}, ${after}${last ? last.label : ""}`;
  });
  document.addEventListener("click", (event) => {
    const line = event.target.closest("svg.line");
    const form = document.getElementById("record");
    if (!line || !form) return;
    const box = line.getBoundingClientRect();
    const part = Math.min(0.999999, Math.max(0, (event.clientX - box.left) / box.width));
    form.elements.topic.value = line.closest("details").dataset.topic;
    form.elements.partition.value = line.closest("li").dataset.partition;
    form.elements.offset.value = String(BigInt(line.dataset.start) + BigInt(Math.floor(part * line.dataset.size)));
    form.requestSubmit();
  });
  if (!everyMs) return; // an earlier time, which does not change
  button.addEventListener("click", () => {
    paused = !paused;
    button.setAttribute("aria-pressed", String(paused));
    button.textContent = paused ? "Resume" : "Pause";
    refresh();
  });
  // A page that takes long is fetched less often.
  async function again() {
    const began = performance.now();
    await refresh();
    setTimeout(again, Math.max(everyMs, 10 * (performance.now() - began)));
  }
  setTimeout(again, everyMs);
})();
