// Fetches the page again and puts its new content in the place of the old; focus, open topics and place stay.
(() => {
  const button = document.getElementById("pause");
  const everyMs = Number(document.body.dataset.refreshMs);
  let paused = false;

  const openIds = () => [...document.querySelectorAll("details[open]")].map((one) => one.id);

  function show(text) {
    const next = new DOMParser().parseFromString(text, "text/html").querySelector("main");
    if (!next) throw new Error("no page");
    const old = document.querySelector("main");
    const known = new Set([...old.querySelectorAll("details")].map((one) => one.id));
    const open = new Set(openIds());
    const focused = document.activeElement && document.activeElement.id;
    for (const one of next.querySelectorAll("details")) if (known.has(one.id)) one.open = open.has(one.id);
    old.replaceWith(next);
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
