//! Rewrites source so that it contains all of its mutants, each behind `crate::mutant::is(ID)`.
//!
//! ```text
//! a < b              (if is(1) { a == b } else if is(2) { a > b } else if is(3) { a <= b } else { a < b })
//! fn f() -> bool {   fn f() -> bool { if is(4) { return true; } if is(5) { return false; } ...
//! X => y,            X if !is(6) => y,       where another arm matches everything
//! ```
//!
//! The mutants are those of cargo-mutants.

use std::collections::BTreeSet;

use proc_macro2::Span;
use quote::ToTokens as _;
use syn::visit_mut::{self, VisitMut};
use syn::{BinOp, Expr, ExprBinary, Pat, ReturnType, Type, UnOp, parse_quote};

/// One change of the source.
#[derive(Clone, Debug)]
pub struct Mutant {
    pub id: u32,
    pub file: String,
    pub line: usize,
    pub column: usize,
    pub function: String,
    pub change: String,
}

impl std::fmt::Display for Mutant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { file, line, column, function, change, .. } = self;
        write!(f, "{file}:{line}:{column}\t{function}\t{change}")
    }
}

/// Collects the mutants of several files. Identifiers depend on the source alone, not on what is left out.
pub struct Instrument {
    pub mutants: Vec<Mutant>,
    /// Identifiers of mutants that do not compile.
    pub excluded: BTreeSet<u32>,
    next_id: u32,
    file: String,
    functions: Vec<String>,
}

impl Instrument {
    pub fn new(excluded: BTreeSet<u32>) -> Self {
        Self { mutants: Vec::new(), excluded, next_id: 1, file: String::new(), functions: Vec::new() }
    }

    /// Returns the source of a file with its mutants.
    pub fn rewrite(&mut self, file: &str, source: &str) -> syn::Result<String> {
        self.file = file.to_owned();
        let mut parsed = syn::parse_file(source)?;
        self.visit_file_mut(&mut parsed);
        Ok(prettyplease::unparse(&parsed))
    }

    /// Adds a mutant. Returns its identifier, unless it is excluded.
    fn add(&mut self, at: Span, change: String) -> Option<u32> {
        let id = self.next_id;
        self.next_id += 1;
        if self.excluded.contains(&id) {
            return None;
        }
        let function = self.functions.join("::");
        let (file, start) = (self.file.clone(), at.start());
        self.mutants.push(Mutant { id, file, line: start.line, column: start.column + 1, function, change });
        Some(id)
    }

    /// `original`, or one of the alternatives while its mutant is active.
    fn choose(&mut self, at: Span, original: Expr, alternatives: Vec<(String, Expr)>) -> Expr {
        let chosen: Vec<(u32, Expr)> = alternatives
            .into_iter()
            .filter_map(|(change, alternative)| Some((self.add(at, change)?, alternative)))
            .collect();
        if chosen.is_empty() {
            return original;
        }
        let mut chain: Expr = parse_quote!({ #original });
        for (id, alternative) in chosen.into_iter().rev() {
            chain = parse_quote!(if crate::mutant::is(#id) { #alternative } else #chain);
        }
        parse_quote!((#chain))
    }

    fn function(&mut self, signature: &syn::Signature, block: &mut syn::Block) {
        self.functions.push(signature.ident.to_string());
        let is_empty = block.stmts.is_empty();
        visit_mut::visit_block_mut(self, block);
        if !is_empty && signature.unsafety.is_none() {
            let mut returns = Vec::new();
            for value in values_of(&signature.output) {
                let change = format!("return {}", value.to_token_stream());
                if let Some(id) = self.add(signature.ident.span(), change) {
                    returns.push(parse_quote!(if crate::mutant::is(#id) { return #value; }));
                }
            }
            block.stmts.splice(0..0, returns);
        }
        self.functions.pop();
    }
}

impl VisitMut for Instrument {
    fn visit_item_mut(&mut self, item: &mut syn::Item) {
        let attributes = match item {
            syn::Item::Const(_) | syn::Item::Static(_) | syn::Item::Macro(_) => return,
            syn::Item::Mod(item) => &item.attrs,
            syn::Item::Fn(item) => &item.attrs,
            syn::Item::Impl(item) => &item.attrs,
            _ => return visit_mut::visit_item_mut(self, item),
        };
        if is_test(attributes) {
            return;
        }
        if let syn::Item::Impl(item) = item {
            let of = item.self_ty.to_token_stream().to_string();
            self.functions.push(of.split([' ', '<']).next().unwrap_or_default().to_owned());
            visit_mut::visit_item_impl_mut(self, item);
            self.functions.pop();
            return;
        }
        visit_mut::visit_item_mut(self, item);
    }

    fn visit_item_fn_mut(&mut self, item: &mut syn::ItemFn) {
        self.function(&item.sig, &mut item.block);
    }

    fn visit_impl_item_fn_mut(&mut self, item: &mut syn::ImplItemFn) {
        if !is_test(&item.attrs) {
            self.function(&item.sig, &mut item.block);
        }
    }

    fn visit_impl_item_const_mut(&mut self, _: &mut syn::ImplItemConst) {}

    // Patterns and types have constants, and no code.
    fn visit_pat_mut(&mut self, _: &mut Pat) {}
    fn visit_type_mut(&mut self, _: &mut Type) {}
    fn visit_generics_mut(&mut self, _: &mut syn::Generics) {}
    fn visit_variant_mut(&mut self, _: &mut syn::Variant) {}

    fn visit_expr_repeat_mut(&mut self, repeat: &mut syn::ExprRepeat) {
        self.visit_expr_mut(&mut repeat.expr);
    }

    fn visit_expr_const_mut(&mut self, _: &mut syn::ExprConst) {}

    fn visit_expr_mut(&mut self, expr: &mut Expr) {
        let plain = expr.clone();
        visit_mut::visit_expr_mut(self, expr);
        match plain {
            Expr::Binary(binary) if !has_let(&binary.left) && !has_let(&binary.right) => {
                let operator = binary.op.to_token_stream();
                let alternatives = alternatives_of(&binary.op).into_iter().map(|op| {
                    let change = format!("{operator} -> {}", op.to_token_stream());
                    (change, Expr::Binary(ExprBinary { op, ..binary.clone() }))
                });
                let at = syn::spanned::Spanned::span(&binary.op);
                *expr = self.choose(at, expr.clone(), alternatives.collect());
            }
            Expr::Unary(unary) if matches!(unary.op, UnOp::Not(_) | UnOp::Neg(_)) => {
                let change = format!("delete {}", unary.op.to_token_stream());
                let at = syn::spanned::Spanned::span(&unary.op);
                *expr = self.choose(at, expr.clone(), vec![(change, *unary.expr)]);
            }
            Expr::Match(_) => {
                if let Expr::Match(found) = expr {
                    self.arms(found);
                }
            }
            _ => {}
        }
    }
}

impl Instrument {
    /// Deletes arms where another arm matches everything, and replaces guards.
    fn arms(&mut self, found: &mut syn::ExprMatch) {
        let has_wildcard =
            found.arms.iter().any(|arm| matches!(arm.pat, Pat::Wild(_)) && arm.guard.is_none());
        for arm in &mut found.arms {
            let at = syn::spanned::Spanned::span(&arm.pat);
            if let Some((_, guard)) = &mut arm.guard
                && !has_let(guard)
            {
                let alternatives = vec![
                    ("guard -> true".to_owned(), parse_quote!(true)),
                    ("guard -> false".to_owned(), parse_quote!(false)),
                ];
                **guard = self.choose(at, (**guard).clone(), alternatives);
            } else if has_wildcard && !matches!(arm.pat, Pat::Wild(_)) && arm.guard.is_none() {
                let change = format!("delete arm {}", arm.pat.to_token_stream());
                if let Some(id) = self.add(at, change) {
                    arm.guard = Some((Default::default(), parse_quote!(!crate::mutant::is(#id))));
                }
            }
        }
    }
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let text = attribute.to_token_stream().to_string();
        text == "# [test]" || (text.contains("cfg") && text.contains("test"))
    })
}

/// Conditions with `let` cannot be moved into a branch.
fn has_let(expr: &Expr) -> bool {
    match expr {
        Expr::Let(_) => true,
        Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

fn alternatives_of(op: &BinOp) -> Vec<BinOp> {
    let operators: &[&str] = match op {
        BinOp::Eq(_) => &["!="],
        BinOp::Ne(_) => &["=="],
        BinOp::And(_) => &["||"],
        BinOp::Or(_) => &["&&"],
        BinOp::Lt(_) => &["==", ">", "<="],
        BinOp::Gt(_) => &["==", "<", ">="],
        BinOp::Le(_) => &[">", "<"],
        BinOp::Ge(_) => &["<", ">"],
        BinOp::Add(_) => &["-", "*"],
        BinOp::Sub(_) => &["+", "/"],
        BinOp::Mul(_) => &["+", "/"],
        BinOp::Div(_) => &["%", "*"],
        BinOp::Rem(_) => &["/", "+"],
        BinOp::Shl(_) => &[">>"],
        BinOp::Shr(_) => &["<<"],
        BinOp::BitAnd(_) => &["|", "^"],
        BinOp::BitOr(_) => &["&", "^"],
        BinOp::BitXor(_) => &["|", "&"],
        BinOp::AddAssign(_) => &["-=", "*="],
        BinOp::SubAssign(_) => &["+=", "/="],
        BinOp::MulAssign(_) => &["+=", "/="],
        BinOp::DivAssign(_) => &["%=", "*="],
        BinOp::RemAssign(_) => &["/=", "+="],
        BinOp::ShlAssign(_) => &[">>="],
        BinOp::ShrAssign(_) => &["<<="],
        BinOp::BitAndAssign(_) => &["|="],
        BinOp::BitOrAssign(_) => &["&="],
        BinOp::BitXorAssign(_) => &["|=", "&="],
        _ => &[],
    };
    operators.iter().filter_map(|operator| syn::parse_str(operator).ok()).collect()
}

/// Values that a function may return instead of its own.
fn values_of(output: &ReturnType) -> Vec<Expr> {
    match output {
        ReturnType::Default => vec![parse_quote!(())],
        ReturnType::Type(_, ty) => values(ty),
    }
}

fn values(ty: &Type) -> Vec<Expr> {
    match ty {
        Type::Tuple(tuple) if tuple.elems.is_empty() => vec![parse_quote!(())],
        Type::Tuple(tuple) => {
            let first: Option<Vec<Expr>> =
                tuple.elems.iter().map(|ty| values(ty).into_iter().next()).collect();
            first.map(|first| parse_quote!((#(#first),*))).into_iter().collect()
        }
        Type::Reference(reference) if reference.mutability.is_none() => match &*reference.elem {
            Type::Slice(_) => vec![parse_quote!(&[])],
            Type::Path(path) if path.path.is_ident("str") => vec![parse_quote!(""), parse_quote!("xyzzy")],
            _ => vec![],
        },
        Type::Path(path) => path.path.segments.last().map_or(vec![], values_of_path),
        _ => vec![],
    }
}

fn values_of_path(segment: &syn::PathSegment) -> Vec<Expr> {
    let inner = || -> Vec<Expr> {
        let syn::PathArguments::AngleBracketed(arguments) = &segment.arguments else { return vec![] };
        let Some(syn::GenericArgument::Type(ty)) = arguments.args.first() else { return vec![] };
        values(ty)
    };
    let wrap = |value: Expr, with: &str| -> Expr {
        let with = syn::Ident::new(with, Span::call_site());
        parse_quote!(#with(#value))
    };
    match segment.ident.to_string().as_str() {
        "bool" => vec![parse_quote!(true), parse_quote!(false)],
        "u8" | "u16" | "u32" | "u64" | "u128" | "usize" => vec![parse_quote!(0), parse_quote!(1)],
        "i8" | "i16" | "i32" | "i64" | "i128" | "isize" => {
            vec![parse_quote!(0), parse_quote!(1), parse_quote!(-1)]
        }
        "Option" => {
            let some = inner().into_iter().map(|value| wrap(value, "Some"));
            std::iter::once(parse_quote!(None)).chain(some).collect()
        }
        "Result" => inner().into_iter().map(|value| wrap(value, "Ok")).collect(),
        _ => vec![parse_quote!(Default::default())],
    }
}
