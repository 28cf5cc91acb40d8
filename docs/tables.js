// The theme lets a wide table scroll, and forgets those who scroll with keys: let them reach it.
const reach = () => {
  for (const wrap of document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])")) {
    if (wrap.scrollWidth <= wrap.clientWidth) continue;
    wrap.tabIndex = 0;
    wrap.setAttribute("role", "group");
    wrap.setAttribute("aria-label", "Table");
  }
};
new MutationObserver(reach).observe(document.body, { childList: true, subtree: true });
window.addEventListener("load", reach);
